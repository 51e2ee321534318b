"""The page that shows what a run's evaluations gave.

It is one HTML file that needs nothing else, not even a network. `stages/evaluation_report.py` gathers its
contents and publishes it. Nothing here computes a score.
"""
