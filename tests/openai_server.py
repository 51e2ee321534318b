"""A small OpenAI-compatible server whose answers a test scripts, good ones and bad ones; it notes what it was asked."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from toolformer_ops.language_model.endpoint.client import CHECK_PROMPT

MODEL = "maker/writer"


@dataclass(frozen=True)
class Response:
    """What the server sends."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: int | None = None
    """How many bytes are really sent of those that the header names, before the connection ends."""
    is_endless: bool = False
    """Whether the body is sent again and again."""
    delay: float = 0.0


Script = Callable[[dict[str, Any]], Response]
"""From the body of a request to its response."""


def written(*texts: str, model: str | None = MODEL, finish_reason: str = "stop") -> Response:
    """An answer of the completions API and of the chat API in one."""
    choices = [
        {"index": nth, "text": text, "message": {"content": text}, "finish_reason": finish_reason}
        for nth, text in enumerate(texts)
    ]
    return Response(json.dumps({"model": model, "choices": choices}).encode())


def continues(text: str) -> Script:
    """Writes this for each sample, whatever it is asked."""
    return lambda body: written(*[text] * body.get("n", 1))


class OpenAIServer(ThreadingHTTPServer):
    """Answers what `script` says; `requests` are the bodies that it got, without those of the check."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Request(BaseHTTPRequestHandler):
    server: OpenAIServer

    def do_GET(self) -> None:
        self._send(Response(json.dumps({"data": [{"id": MODEL}]}).encode()))

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.paths.append(self.path)
        server.headers.append(dict(self.headers))
        (server.checks if CHECK_PROMPT in json.dumps(body) else server.requests).append(body)
        self._send(server.script(body))

    def _send(self, response: Response) -> None:
        time.sleep(response.delay)
        self.send_response(response.status)
        self.send_header("Content-Type", "application/json")
        if not response.is_endless:
            self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(response.body[: response.sent])
            while response.is_endless:
                self.wfile.write(response.body)
        except OSError:  # the other side has had enough
            pass
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def openai_server(script: Script) -> Iterator[OpenAIServer]:
    """The server, while the block lasts."""
    with OpenAIServer(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def write_proposer_file(folder: Path, url: str, name: str = "writer", **keys: Any) -> str:
    """Write the file of a proposer; returns what a run names."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"url": url, "model": MODEL, "licence": "apache-2.0"} | keys
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, table in values.items():
        if isinstance(table, dict):
            lines += [f"[{key}]", *(f"{inner} = {json.dumps(value)}" for inner, value in table.items())]
    (folder / f"{name}.proposer.toml").write_text("\n".join(lines))
    return f"endpoint:{name}"


def text_before_call(body: Mapping[str, Any]) -> str:
    """What a request of the completions API holds of its text, up to the call's opening."""
    return re.sub(r" \[[^\[]*\Z", "", body["prompt"].rpartition("Output:")[2]).strip()
