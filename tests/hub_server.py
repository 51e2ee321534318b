"""A small server that speaks the part of the Hugging Face Hub's API by which repositories are made and files are sent.

Repositories are in memory: commits with all of their files, and the contents by hash. It refuses what the hub
refuses: another token, a commit on top of another one than it has. It does harm on request.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_writer_of_the_tests"
LARGE = (".parquet", ".safetensors")
"""Endings of files that go to the large storage; the others are in the commit itself."""


@dataclass
class Repository:
    """The files of each commit, by its id; the last is `main`."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {".gitattributes": b""}})

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[self.head]


class Hub(ThreadingHTTPServer):
    """One server; use `running_hub`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.repositories: dict[str, Repository] = {}
        self.contents: dict[str, bytes] = {}
        self.uploads: list[str] = []
        """Hashes of the contents that were sent, in order."""
        self.uploading = threading.Lock()  # clients send several at once
        self.uploads_before_break: int | None = None
        """So many uploads are taken; then each is refused, as by a storage that is away."""
        self.ignored = ""
        """A file that the repository's .gitignore names."""
        self.moves_meanwhile = False
        """Whether somebody else commits between the look at the repository and the commit."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Request(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        match = re.fullmatch(
            r"/api/((?:datasets|models)/([^/]+/[^/]+))(?:/revision/(\w+))?(\?.*)?", self.path
        )
        repository = self.server.repositories.get(match[1]) if match else None
        if not self._allowed():
            return self._answer(401, {"error": "not found"}, "RepoNotFound")
        if match is None or repository is None:
            return self._answer(404, {"error": "not found"}, "RepoNotFound")
        revision = repository.head if match[3] in (None, "main") else match[3]
        siblings = [
            {"rfilename": name, "size": len(text)} for name, text in repository.commits[revision].items()
        ]
        return self._answer(
            200, {"id": match[2], "sha": revision, "private": repository.private, "siblings": siblings}
        )

    def do_PUT(self) -> None:
        content = self._body()
        sha256 = self.path.split("?")[0].removeprefix("/storage/")
        assert hashlib.sha256(content).hexdigest() == sha256
        with self.server.uploading:
            left = self.server.uploads_before_break
            is_taken = left is None or len(self.server.uploads) < left
            if is_taken:
                self.server.uploads.append(sha256)
                self.server.contents[sha256] = content
        return self._answer(200, {}) if is_taken else self._answer(503, {"error": "slow down"})

    def do_POST(self) -> None:  # noqa: PLR0911 - an answer each
        body = self._body()
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if not self._allowed():
            return self._answer(403, {"error": "no right to write"})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            key = f"{asked.get('type', 'model')}s/{asked['organization']}/{asked['name']}"
            if key in self.server.repositories:
                return self._answer(
                    409, {"error": "You already created this repo", "url": f"{self.server.url}/{key}"}
                )
            self.server.repositories[key] = Repository(private=asked["visibility"] == "private")
            return self._answer(200, {"url": f"{self.server.url}/{key.removeprefix('models/')}"})
        if match := re.fullmatch(r"/api/(\w+/[^/]+/[^/]+)/preupload/main", self.path):
            files = self.server.repositories[match[1]].files
            return self._answer(
                200, {"files": [self._mode(asked, files) for asked in json.loads(body)["files"]]}
            )
        if self.path.endswith(".git/info/lfs/objects/batch"):
            return self._answer(
                200, {"objects": [self._storage(asked) for asked in json.loads(body)["objects"]]}
            )
        if match := re.fullmatch(r"/api/(\w+/[^/]+/[^/]+)/commit/main", self.path):
            return self._commit(match[1], [json.loads(line) for line in body.splitlines()])
        return self._answer(404, {"error": self.path})

    def _mode(self, asked: dict[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
        content = files.get(asked["path"])
        large = asked["path"].endswith(LARGE)
        blob = b"" if content is None else f"blob {len(content)}\0".encode() + content
        oid = hashlib.sha256(content or b"") if large else hashlib.sha1(blob)  # noqa: S324 - git's own
        mode = {"path": asked["path"], "uploadMode": "lfs" if large else "regular"}
        mode["oid"] = None if content is None else oid.hexdigest()
        return mode | {"shouldIgnore": asked["path"] == self.server.ignored}

    def _storage(self, asked: dict[str, Any]) -> dict[str, Any]:
        place = {"href": f"{self.server.url}/storage/{asked['oid']}?X-Amz-Signature=signed"}
        return asked | ({} if asked["oid"] in self.server.contents else {"actions": {"upload": place}})

    def _commit(self, key: str, lines: list[dict[str, Any]]) -> None:
        repository = self.server.repositories[key]
        if self.server.moves_meanwhile:
            repository.commits["f" * 40] = dict(repository.files)
        if lines[0]["value"].get("parentCommit") != repository.head:
            return self._answer(412, {"error": "A commit has happened since. Please refresh and try again."})
        files = dict(repository.files)
        for line in lines[1:]:
            path = line["value"]["path"]
            if line["key"] == "file":
                files[path] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                files[path] = self.server.contents[line["value"]["oid"]]
            else:  # deletedFile
                del files[path]
        revision = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()  # noqa: S324
        repository.commits[revision] = files
        url = f"{self.server.url}/{key.removeprefix('models/')}/commit/{revision}"
        return self._answer(200, {"commitUrl": url, "commitOid": revision, "success": True})

    def _allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, value: dict[str, Any], error_code: str = "") -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Error-Code", error_code)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub without repositories, on a free port."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
