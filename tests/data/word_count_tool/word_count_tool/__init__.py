"""A tool for toolformer-ops in a package of its own; docs/tools.md explains it."""
