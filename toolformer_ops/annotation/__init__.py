"""The method as pure functions on records, without a database: `candidates.py` from a document to calls, `scoring.py` to losses."""
