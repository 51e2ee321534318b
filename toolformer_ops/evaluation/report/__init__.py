"""The page that shows what a run's evaluations gave: one HTML file that needs nothing else, not even a network.

    contents.py    what the page is made from, and its key on S3
    tables.py      scores as the paper's tables; text made visible
    charts.py      bars with intervals and loss curves, as SVG
    examples.py    which inputs are shown, and where their calls are
    page.py        the HTML, by Jinja2 with autoescape
    gathering.py   all of that for one run, from Postgres and S3

`stages/evaluation_report.py` publishes it. Nothing here computes a score.
"""
