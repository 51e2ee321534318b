"""Tools that a TOML file makes, without a package: what all files have, and which kind a file is."""
