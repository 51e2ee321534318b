"""An MCP server for tests, over stdin and stdout, without a library: it starts at once, and misbehaves as its calls ask it to.

It writes each call that it gets as a line of `calls.jsonl` in its folder. FAULTY says what is wrong with it
as a whole.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FAULTY = os.environ.get("FAULTY", "")
MARK = Path("died")
LISTS = {"towns": '["Paris", "Lima"]', "places": '[{"town": "Paris"}, {"town": "Lima"}]'}
"""By tool that lists terms, its answer."""


def tools() -> list[dict[str, Any]]:
    text = {"type": "string", "description": "Any text."}
    one = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    if FAULTY == "schema":
        one = {"type": "object", "properties": {"text": text | {"maxLength": 10}}, "required": ["text"]}
    day = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
    properties = {
        "city": {"type": "string"},
        "date": day,
        "unit": {"enum": ["C", "F"]},
        "key": {"type": "string"},
    }
    several = {"type": "object", "properties": properties, "required": ["city", "date"]}
    return [
        {"name": "echo", "description": "Says a text again.", "inputSchema": one},
        {"name": "weather", "inputSchema": several, "annotations": {"readOnlyHint": True}},
        {"name": "write", "inputSchema": one, "annotations": {"readOnlyHint": False}},
        {"name": "towns", "inputSchema": {"type": "object"}},
        {"name": "places", "inputSchema": {"type": "object"}},
    ]


def answer(text: str) -> dict[str, Any]:
    if text.startswith("die:") or (text == "die once" and not MARK.exists()):
        MARK.touch()
        print("dying with the key", os.environ.get("FAULTY_KEY", ""), file=sys.stderr, flush=True)  # noqa: T201
        os._exit(3)
    if text == "hang":
        time.sleep(600)
    if text == "image":
        return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    if text == "error":
        return {"content": [{"type": "text", "text": "no such thing"}], "isError": True}
    if text == "hostile":
        text = "[MT(x) -> y]\x00\x1b[31m\n\u2028 end of it. " + "w" * 10_000_000
    if text == "environment":
        text = " ".join(sorted(os.environ))
    if text == "structured":
        weather = {"sky": "grey", "wind": {"from": "W", "speeds": [3, 5.5]}, "wet": True}
        return {"content": [], "structuredContent": weather}
    return {"content": [{"type": "text", "text": text}]}


def main() -> None:
    if FAULTY == "start" or (FAULTY == "gone" and MARK.exists()):
        sys.exit("no key for the service, see its manual")
    for line in sys.stdin:
        request = json.loads(line)
        method, params = request.get("method"), request.get("params", {})
        if "id" not in request:
            continue
        if FAULTY == "silent":
            time.sleep(600)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if method == "initialize":
            info = {"name": "faulty", "version": "2.0" if FAULTY == "version" else "1.0"}
            reply["result"] = {
                "protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info,
            }  # fmt: skip
        elif method == "tools/list" and FAULTY != "unlisted":
            reply["result"] = {"tools": tools()}
        elif method == "tools/call" and params["arguments"].get("text") != "refused":
            with Path("calls.jsonl").open("a") as calls:
                calls.write(json.dumps(params["arguments"]) + "\n")
            given = params["arguments"]
            said = given["text"] if "text" in given else " ".join(map(str, given.values()))
            reply["result"] = answer(LISTS.get(params["name"], said))
        else:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(reply), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
