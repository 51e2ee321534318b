"""Tools that a TOML file makes, without a package: what their files have in common, and which kind a file is."""
