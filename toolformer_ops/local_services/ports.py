"""Find TCP ports on 127.0.0.1 that nobody listens on.

Does not reserve them: another process may take a port between the choice and its use, and then the service that
was given it fails to start and is started again on another (see `foreground.py` and `lifecycle.py`).
"""

import random
import socket
from collections.abc import Iterable

import psutil

from toolformer_ops.errors import ServiceError

LOOPBACK = "127.0.0.1"

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
        except OSError:
            return False
    return True


def accepts_connections(port: int, timeout_seconds: float = 1.0) -> bool:
    """Whether something listens on `port` of 127.0.0.1."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_seconds):
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


def free_port(avoid: Iterable[int] = (), partner_offset: int = 0) -> int:
    """A free port that is not in `avoid`, and whose partner, `partner_offset` further on, is free too.

    Raises:
        ServiceError: 200 random tries found none.
    """
    avoided = set(avoid)
    generator = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = generator.choice(_FALLBACK_PORTS)
        if port not in avoided and _is_free_with_partner(port, partner_offset):
            return port
    raise ServiceError(
        f"expected a free port between {_FALLBACK_PORTS.start} and {_FALLBACK_PORTS.stop} on {LOOPBACK}, found none in "
        f"{_ATTEMPTS} tries. Stop some of the servers that `ss -ltn` shows."
    )


def choose_port(candidates: Iterable[int | None], avoid: Iterable[int] = (), partner_offset: int = 0) -> int:
    """The first candidate that is free and not in `avoid`, else a random free port; a partner as in `free_port`.

    Call it only for a service that does not run: the port of a running service is not free.
    """
    avoided = set(avoid)
    for port in candidates:
        if port is not None and port not in avoided and _is_free_with_partner(port, partner_offset):
            return port
    return free_port(avoided, partner_offset)


def _is_free_with_partner(port: int, offset: int) -> bool:
    return is_free(port) and (offset == 0 or (port + offset <= _LAST_PORT and is_free(port + offset)))
