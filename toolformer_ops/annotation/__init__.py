"""The method as pure functions on records, without a database.

In this order: `filtering.py`, `candidates.py` (which samples with `text_sampling.py`), `scoring.py`.
"""
