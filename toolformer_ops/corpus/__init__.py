"""Corpora: the files that hold them, and the records in those files."""
