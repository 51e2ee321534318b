"""A function of a Python file as a tool, for what is not worth a package; it runs in a process of its own."""
