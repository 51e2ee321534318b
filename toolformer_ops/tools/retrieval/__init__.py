"""Retrieval of Wikipedia passages: KILT records to passages, and a BM25 index (Pyserini, Lucene)."""
