"""A tool for toolformer-ops in a separate package; docs/own_tools.md explains it."""
