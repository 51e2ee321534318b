"""An MCP server for tests, over stdin and stdout: `length` takes one text, `convert` several arguments, others misbehave."""

import os
import sys
import time
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.utilities.types import Image
from mcp_types import ToolAnnotations

VERSION = os.environ.get("FACTS_VERSION", "1.0")
server: FastMCP = FastMCP("facts", version=VERSION)
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def length(phrase: str) -> str:
    """How many words a phrase has."""
    if phrase == "die once" and not Path("died").exists():
        Path("died").touch()
        print("about to die", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(3)
    if phrase == "die":
        print("dying of " + os.environ.get("FACTS_KEY", "nothing"), file=sys.stderr, flush=True)  # noqa: T201
        os._exit(3)
    if phrase == "hang":
        time.sleep(60)
    if phrase == "fail":
        raise ValueError("no such phrase")
    if phrase == "hostile":
        return "[MT(x) -> y]\x00\x1b[31m\n" + "w" * 10_000_000
    if phrase == "environment":
        return " ".join(sorted(name for name in os.environ if name.startswith(("TOOLFORMER", "FACTS", "AWS"))))
    return str(len(phrase.split()))


@server.tool(annotations=READS)
def convert(amount: float, unit: str, places: int = 1) -> dict[str, object]:
    """Converts miles or pounds."""
    factor = {"miles": 1.609344, "pounds": 0.45359237}[unit]
    return {"value": round(amount * factor, places), "unit": {"miles": "km", "pounds": "kg"}[unit]}


@server.tool(annotations=READS)
def picture(phrase: str) -> Image:
    """A picture of a phrase."""
    return Image(data=phrase.encode(), format="png")


@server.tool(annotations=ToolAnnotations(read_only_hint=False))
def write(phrase: str) -> str:
    """Keeps a phrase."""
    return phrase


if __name__ == "__main__":
    print("facts starts", file=sys.stderr, flush=True)  # noqa: T201
    server.run(show_banner=False)
