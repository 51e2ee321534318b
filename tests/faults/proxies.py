"""Stand between the stages and Postgres or S3, and disturb what passes: cut off, answers lost, refused, half.

Both proxies listen on one port for their whole life, in threads of this process. `rule` is asked for every
statement, or every request, with its number since `reset`, and says what happens to it.
"""

import asyncio
import contextlib
import http.client
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

LOOPBACK = "127.0.0.1"
_SSL_REQUEST = struct.pack(">ii", 8, 80877103)

StatementFate = Literal["pass", "cut", "lose_reply"]


class PostgresProxy:
    """Passes connections on to a Postgres, and knows their statements: `commit`, or `statement` for all others."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.counts: Counter[str] = Counter()
        self._open: set[asyncio.StreamWriter] = set()
        self._passing: set[_Passing] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        listening = asyncio.start_server(self._serve, LOOPBACK, 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(10)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.reset()

    def reset(self) -> None:
        """Pass everything, and count from one again."""
        self.rule: Callable[[str, int], StatementFate] = lambda _kind, _number: "pass"
        self.counts.clear()
        self._away = False

    def keep_servers(self) -> None:
        """From now on Postgres does not learn that the client of a connection that is open now has ended."""
        for passing in [*self._passing]:
            passing.keeps_server = True

    def go_away(self) -> None:
        """Cut every connection, and end each new one at once."""
        self._away = True
        self._loop.call_soon_threadsafe(lambda: [end.transport.abort() for end in self._open])

    def come_back(self) -> None:
        self._away = False

    def close(self) -> None:
        self.go_away()
        self._loop.call_soon_threadsafe(self._server.close)

    async def _serve(self, questions: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        ends = {client}
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if not self._away:
                answers, server = await asyncio.open_connection(LOOPBACK, self.target_port)
                ends.add(server)
                self._open |= ends
                passing = _Passing(self, questions, answers, client, server)
                self._passing.add(passing)
                to_client = asyncio.ensure_future(passing.to_client())
                await asyncio.wait(
                    [asyncio.ensure_future(passing.to_server()), to_client],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                self._passing.remove(passing)
                if passing.keeps_server:
                    await to_client  # until Postgres ends it
        self._open -= ends
        for end in ends:
            end.transport.abort()


@dataclass(eq=False)
class _Passing:
    """One connection."""

    proxy: PostgresProxy
    questions: asyncio.StreamReader
    answers: asyncio.StreamReader
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    loses_reply: bool = False
    keeps_server: bool = False

    async def to_server(self) -> None:
        """Pass messages on; a message is a letter, four bytes of length (itself included) and its content."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            first = await self.questions.readexactly(8)
            while first == _SSL_REQUEST:
                self.server.write(first)
                first = await self.questions.readexactly(8)
            self.server.write(first + await self.questions.readexactly(struct.unpack(">i", first[:4])[0] - 8))
            while True:
                head = await self.questions.readexactly(5)
                message = head + await self.questions.readexactly(struct.unpack(">i", head[1:])[0] - 4)
                if head[:1] == b"Q":
                    kind = "commit" if message[5:12].upper() == b"COMMIT\0" else "statement"
                    self.proxy.counts[kind] += 1
                    fate = self.proxy.rule(kind, self.proxy.counts[kind])
                    if fate == "cut":
                        return
                    self.loses_reply = fate == "lose_reply"
                self.server.write(message)

    async def to_client(self) -> None:
        """Pass the answers on, but for one that is lost: the server has given it, and the connection is cut."""
        with contextlib.suppress(OSError):
            while (block := await self.answers.read(65536)) and not self.loses_reply:
                if not self.client.is_closing():
                    self.client.write(block)


RequestFate = Literal["pass", "cut", "lose_reply", "truncate", "damage", "409", "409_written", "500", "503"]
"""`cut`: before it is passed on; `lose_reply`: after; `409_written`: the answer 409 to a write that was
carried out; `damage`: the last byte of the content is another one.
"""
CODES = {"409": "ConditionalRequestConflict", "500": "InternalError", "503": "SlowDown"}


class ObjectStoreProxy:
    """Passes requests on to an S3; its rule is asked with the method and the path."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.counts: Counter[str] = Counter()
        self.kept = 0.5
        """Share of a truncated content that arrives."""
        self.announces: Literal["all", "less", "nothing"] = "all"
        """The length that a truncated answer announces: of the whole content, of what it sends, or none."""
        self._lock = threading.Lock()
        self.reset()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self) -> None:
        """Pass everything, and count from one again."""
        self.rule: Callable[[str, str], RequestFate] = lambda _method, _path: "pass"
        self.counts.clear()
        self.away = False

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Pass one request on, or not."""
        with self._lock:
            conditional = "If-None-Match" in request.headers
            method = f"{request.command} if absent" if conditional else request.command
            self.counts[method] += 1
            fate: RequestFate = "cut" if self.away else self.rule(method, request.path.partition("?")[0])
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if request.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b"".join(self._chunks(request))
        if fate == "cut":
            request.close_connection = True
            return
        if fate in CODES:
            self._refuse(request, fate)
            return
        connection = http.client.HTTPConnection(LOOPBACK, self.target_port, timeout=30)
        try:
            asked = _without(
                request.headers.items(), "expect", "transfer-encoding", "connection", "content-length"
            )
            connection.request(
                request.command, request.path, body, {**asked, "Content-Length": str(len(body))}
            )
            answer = connection.getresponse()
            content = answer.read()
        except OSError:  # it does not run
            request.close_connection = True
            return
        finally:
            connection.close()
        if fate == "lose_reply":
            request.close_connection = True
            return
        if fate == "409_written" and answer.status == 200:
            self._refuse(request, "409")
            return
        headers = _without(answer.getheaders(), "connection", "transfer-encoding", "content-length")
        length = answer.getheader("Content-Length", "0") if request.command == "HEAD" else str(len(content))
        if fate == "damage":
            content = content[:-1] + bytes([content[-1] ^ 1])
        if fate == "truncate" and len(content) > 1:
            content = content[: int(len(content) * self.kept)]
            length = {"all": length, "less": str(len(content)), "nothing": ""}[self.announces]
            request.close_connection = True
        self._answer(
            request, answer.status, headers | ({"Content-Length": length} if length else {}), content
        )

    def _refuse(self, request: BaseHTTPRequestHandler, status: str) -> None:
        content = f"<Error><Code>{CODES[status]}</Code><Message>by the test</Message></Error>".encode()
        headers = {"Content-Type": "application/xml", "Content-Length": str(len(content))}
        self._answer(request, int(status), headers, content)

    @staticmethod
    def _answer(
        request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes
    ) -> None:
        request.send_response_only(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)

    @staticmethod
    def _chunks(request: BaseHTTPRequestHandler) -> list[bytes]:
        chunks = []
        while size := int(request.rfile.readline().split(b";")[0], 16):
            chunks.append(request.rfile.read(size))
            request.rfile.readline()
        request.rfile.readline()
        return chunks


def _without(headers: Iterable[tuple[str, str]], *names: str) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in names}
