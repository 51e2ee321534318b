"""Rows of finished runs: their history on S3, how long they are kept, and how texts are forgotten."""
