"""The page that shows what a run's evaluations gave: one HTML file that needs nothing else, not even a network.

    contents.py    what the page is made from
    tables.py      scores as the paper's tables
    charts.py      bars with intervals and loss curves, as SVG
    examples.py    which inputs are shown, and where their calls stand
    pairing.py     rows beside each other on the same inputs
    page.py        the HTML, by Jinja2 with autoescape
    place.py       where the page lies on S3
    gathering.py   all of that for one run, from Postgres and S3

`stages/evaluation_report.py` publishes it. Nothing here computes a score.
"""
