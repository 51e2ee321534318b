"""TCP ports of the embedded services on 127.0.0.1: which are free, and which each service had at the last `up` (`ports.json`).

Another `up` on this machine cannot choose a port that is reserved here (`reserve`). Any other process may take it between the
choice and its use: the service then fails to start, and `lifecycle.up` starts it again on another.
"""

import contextlib
import json
import logging
import random
import socket
from collections.abc import Collection, Iterable, Mapping

import psutil

from toolformer_ops.errors import ServiceError
from toolformer_ops.local.state_folder import AIRFLOW, OBJECT_STORE, POSTGRES, StatePaths, write_private

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

WEED_PORTS = {
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
"""Every port that SeaweedFS opens, by the option of `weed mini` that sets it. Without it, each would be a fixed number."""
ADMIN_GRPC_OFFSET = 10_000
"""The worker inside `weed` looks for the admin server's gRPC port here, also when `-admin.port.grpc` names another."""

SERVICE_OF_PORT = {"postgres": POSTGRES, "airflow": AIRFLOW} | dict.fromkeys(WEED_PORTS, OBJECT_STORE)
PORT_OF_SERVICE = {POSTGRES: "postgres", OBJECT_STORE: "s3", AIRFLOW: "airflow"}
USUAL_PORTS = {"postgres": 15432, "airflow": 8080} | {name: 18333 + place for place, name in enumerate(WEED_PORTS)}

# Below 32768, where Linux takes the local ends of outgoing connections, so that no client can sit on a chosen port.
_FALLBACK_PORTS = range(20_000, 32_000)
_LAST_PORT = 65_535
_ATTEMPTS = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except (OSError, OverflowError):
            return False
    return True


def reserve(port: int) -> socket.socket | None:
    """Keep other starts from choosing `port` until the returned socket is closed; None where another start has reserved it.

    The reservation is a name in Linux's abstract socket namespace, which ends with its process. It is not the port itself, which
    the service has to bind.
    """
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        reservation.bind(f"\0toolformer-ops port {port}")
    except OSError:
        reservation.close()
        return None
    return reservation


def accepts_connections(port: int) -> bool:
    """Whether something listens on `port` of 127.0.0.1."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
    except OSError:
        return False


def listens(process_id: int, port: int) -> bool:
    """Whether this process, or one that it started, listens on `port`."""
    try:
        process = psutil.Process(process_id)
        family = [process, *process.children(recursive=True)]
        connections = [connection for member in family for connection in member.net_connections("tcp")]
    except psutil.Error:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)


def choose_port(
    candidates: Iterable[int | None] = (),
    avoid: Iterable[int] = (),
    *,
    name: str = "",
    reservations: contextlib.ExitStack | None = None,
) -> int:
    """Return the first candidate that is free and not in `avoid`, else a random free port.

    Call it only for a service that does not run: the port of a running service is not free. The port named `admin` needs a second
    one, `ADMIN_GRPC_OFFSET` above it, that must be free too. `reservations` keeps the port from other starts until it is closed.

    Raises:
        ServiceError: 200 random tries found none.
    """
    avoided = set(avoid)
    generator = random.SystemRandom()
    for port in (*candidates, *(generator.choice(_FALLBACK_PORTS) for _ in range(_ATTEMPTS))):
        if port is None or port in avoided:
            continue
        # Reserved before it is looked at: a start that had reserved it may listen on it by now.
        reservation = reserve(port)
        if reservation is None:
            continue
        partner = port + ADMIN_GRPC_OFFSET
        if is_free(port) and (name != "admin" or (partner <= _LAST_PORT and is_free(partner))):
            if reservations is None:
                reservation.close()
            else:
                reservations.enter_context(reservation)
            return port
        reservation.close()
    raise ServiceError(
        f"expected a free port between {_FALLBACK_PORTS.start} and {_FALLBACK_PORTS.stop} on {LOOPBACK}, found none in "
        f"{_ATTEMPTS} tries. Stop some of the servers that `ss -ltn` shows."
    )


def recalled_ports(paths: StatePaths) -> dict[str, int]:
    """Return the ports of the last `up`, by name; empty before the first."""
    if not paths.ports.exists():
        return {}
    try:
        known = json.loads(paths.ports.read_text(encoding="utf-8"))
        return {name: int(known[name]) for name in SERVICE_OF_PORT if name in known}
    except (ValueError, TypeError):
        logger.warning("%s could not be read, so new ports are chosen", paths.ports)
        return {}


def settle_ports(
    paths: StatePaths,
    asked: Mapping[str, int],
    running: Collection[str],
    reservations: contextlib.ExitStack | None = None,
) -> dict[str, int]:
    """Return a port for every name, and write them to `ports.json`; those that are chosen now are held by `reservations`.

    A running service keeps its port. Any other gets the port that `asked` names, else the recalled one, else the usual one, else
    one that is free.
    """
    recalled = recalled_ports(paths)
    settled = {name: port for name, port in recalled.items() if SERVICE_OF_PORT[name] in running}
    for name, port in asked.items():
        if settled.get(name, port) != port:
            logger.warning(
                "%s stays on port %d while it runs; `toolformer-ops down` first to move it to %d",
                name,
                settled[name],
                port,
            )
    for name in SERVICE_OF_PORT:
        if name in settled:
            continue
        usual = USUAL_PORTS[name]
        if name in WEED_PORTS and "s3" in settled:  # the inner ports follow that of S3
            usual += settled["s3"] - USUAL_PORTS["s3"]
        wanted = asked.get(name) or recalled.get(name) or usual
        candidates = [wanted, recalled.get(name), usual]
        settled[name] = choose_port(candidates, settled.values(), name=name, reservations=reservations)
        if settled[name] != wanted:
            level = logging.WARNING if name in PORT_OF_SERVICE.values() else logging.DEBUG
            logger.log(level, "port %d is taken, so %s listens on %d", wanted, name, settled[name])
    write_private(paths.ports, json.dumps(settled, indent=2) + "\n")
    return settled
