"""A run: what its user chose, the recipes that follow from it, its models, and how a stage works in micro-batches."""
