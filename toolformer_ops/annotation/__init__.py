"""The method as pure functions on records, without a database: `filtering.py`, `candidates.py`, `scoring.py`, in this order."""
