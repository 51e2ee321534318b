"""Find TCP ports on 127.0.0.1 that nobody listens on.

Does not reserve them: another process may take a port between the choice and its use, and then the service that
was given it fails to start and is started again on another (see `foreground.py` and `lifecycle.py`).
"""

import random
import socket
from collections.abc import Iterable

from toolformer_ops.local_services.errors import ServiceError

LOOPBACK = "127.0.0.1"

# Below 32768, where Linux takes the local ends of outgoing connections, so that no client can sit on a chosen port.
_FALLBACK_PORTS = range(20_000, 32_000)
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


def free_port(avoid: Iterable[int] = ()) -> int:
    """A free port that is not in `avoid`; raises `ServiceError` when 200 random tries find none."""
    avoided = set(avoid)
    generator = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = generator.choice(_FALLBACK_PORTS)
        if port not in avoided and is_free(port):
            return port
    raise ServiceError(
        f"expected a free port between {_FALLBACK_PORTS.start} and {_FALLBACK_PORTS.stop} on {LOOPBACK}, found none in "
        f"{_ATTEMPTS} tries. Stop some of the servers that `ss -ltn` shows."
    )


def free_ports(names: Iterable[str]) -> dict[str, int]:
    """A different free port for each name."""
    chosen: dict[str, int] = {}
    for name in names:
        chosen[name] = free_port(avoid=chosen.values())
    return chosen


def choose_port(candidates: Iterable[int | None], avoid: Iterable[int] = ()) -> int:
    """The first candidate that is free and not in `avoid`, else a random free port.

    Call it only for a service that does not run: the port of a running service is not free.
    """
    avoided = set(avoid)
    for port in candidates:
        if port is not None and port not in avoided and is_free(port):
            return port
    return free_port(avoided)
