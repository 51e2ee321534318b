"""Annotate the texts of a file in one process."""
