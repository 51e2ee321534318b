"""A tool for toolformer-ops in a separate package; docs/tools.md explains it."""
