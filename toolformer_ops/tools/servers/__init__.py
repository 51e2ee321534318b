"""Tools of MCP servers and OpenAPI services: the file that names one, its calls, its connection."""
