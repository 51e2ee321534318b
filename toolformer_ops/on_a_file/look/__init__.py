"""Look at a corpus and at single calls: check, measure, preview, explain."""
