"""The files of corpora: their addresses, formats and records, and how a record becomes a document."""
