"""Look at a corpus and at single calls: check, estimate, preview, explain."""
