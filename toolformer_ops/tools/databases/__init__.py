"""A database as a tool: the model writes a SELECT, which a process of its own runs, reading only."""
