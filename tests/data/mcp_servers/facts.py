"""An MCP server of fastmcp for tests: `length` takes one text, `convert` several arguments."""

from fastmcp import FastMCP
from mcp_types import ToolAnnotations

server: FastMCP = FastMCP("facts", version="1.0")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def length(phrase: str) -> str:
    """How many words a phrase has."""
    return str(len(phrase.split()))


@server.tool(annotations=READS)
def convert(amount: float, unit: str, places: int = 1) -> dict[str, object]:
    """Converts miles or pounds."""
    factor = {"miles": 1.609344, "pounds": 0.45359237}[unit]
    return {"value": round(amount * factor, places), "unit": {"miles": "km", "pounds": "kg"}[unit]}


if __name__ == "__main__":
    server.run(show_banner=False)
