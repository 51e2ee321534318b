"""The page that shows what a run's evaluations gave: one HTML file that needs nothing else, not even a network.

    contents.py    what the page is made from
    charts.py      bars with intervals and loss curves, as SVG
    page.py        the HTML, by Jinja2 with autoescape; which inputs are shown, and where their calls are

`stages/evaluation_report.py` gathers the contents and publishes the page. Nothing here computes a score.
"""
