"""TCP ports of the embedded services on 127.0.0.1: fixed numbers, or free ones that are chosen once and kept in `ports.json`."""

import json
import logging
import random
import socket
from collections.abc import Collection, Mapping

from toolformer_ops.config import ENV_PREFIX
from toolformer_ops.errors import ServiceError
from toolformer_ops.local.state_folder import StatePaths, write_private

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
USUAL_PORTS = {"postgres": 15432, "s3": 18333, "airflow": 8080}

WEED_OPTIONS = {
    "s3": "s3.port",
    "s3_grpc": "s3.port.grpc",
    "filer": "filer.port",
    "filer_grpc": "filer.port.grpc",
    "volume": "volume.port",
    "volume_grpc": "volume.port.grpc",
    "master": "master.port",
    "master_grpc": "master.port.grpc",
    "admin": "admin.port",
    "admin_grpc": "admin.port.grpc",
}
"""Every port that SeaweedFS opens, by the option of `weed mini` that sets it. Without it, each would be a
fixed number."""
_ADMIN_GRPC_OFFSET = 10_000
"""The worker inside `weed` looks for the admin server's gRPC port here, also when `-admin.port.grpc` names
another."""

_FREE_PORTS = range(20_000, 32_000)
"""Where the highest port of a service lies that gets free ones: below 32768, where Linux takes the local ends
of outgoing connections, so that no client can sit on a port between its choice and the start of the service."""
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


class ReservedPorts:
    """Ports that a starting `up` has chosen, and on which it listens itself until their service is started.

    Airflow starts a minute after its port was chosen: meanwhile another `up` of this machine sees it as
    taken.
    """

    def __init__(self) -> None:
        self._servers: dict[int, socket.socket] = {}

    def reserve(self, ports: Collection[int]) -> bool:
        """Listen on all these ports; False, and on none of them, if another program listens on one."""
        for port in ports:
            try:
                self._servers[port] = socket.create_server((LOOPBACK, port))
            except (OSError, OverflowError):
                self.release(ports)
                return False
        return True

    def release(self, ports: Collection[int] | None = None) -> None:
        """Leave these ports to their service; None: all that are reserved."""
        for port in tuple(self._servers if ports is None else ports):
            if port in self._servers:
                self._servers.pop(port).close()


def ports_of(name: str, port: int) -> dict[str, int]:
    """Return every port, by name, that a service of `USUAL_PORTS` opens when its address has `port`."""
    if name != "s3":
        return {name: port}
    ports = {inner: port + place for place, inner in enumerate(WEED_OPTIONS)}
    return ports | {"admin_grpc": ports["admin"] + _ADMIN_GRPC_OFFSET}


def candidate_ports(name: str) -> range:
    """Return the ports that the address of a service may get, so that all its ports end where `_FREE_PORTS` ends."""
    distance = max(ports_of(name, 0).values())
    return range(_FREE_PORTS.start - distance, _FREE_PORTS.stop - distance)


def choose_ports(
    name: str, *wanted: int, avoid: Collection[int] = (), reserved: ReservedPorts | None = None
) -> dict[str, int]:
    """Return all ports of a service that does not run: with the first `wanted` port whose all are free, else a random one.

    They are added to those that are `reserved`.

    Raises:
        ServiceError: 200 random tries found none.
    """
    candidates = candidate_ports(name)
    random_ports = random.SystemRandom().sample(candidates, _ATTEMPTS)
    for port in (*wanted, *random_ports):
        ports = ports_of(name, port)
        if set(avoid) & set(ports.values()):
            continue
        if reserved.reserve(ports.values()) if reserved else all(map(is_free, ports.values())):
            return ports
    raise ServiceError(
        f"expected free ports between {candidates.start} and {_FREE_PORTS.stop} on {LOOPBACK} for {name}, "
        f"found none in {_ATTEMPTS} tries. Stop some of the servers that `ss -ltn` shows."
    )


def recalled_ports(paths: StatePaths) -> dict[str, int]:
    """Return the ports in `ports.json`, by name; empty before the first `up`."""
    if not paths.ports.exists():
        return {}
    ports: dict[str, int] = json.loads(paths.ports.read_text(encoding="utf-8"))
    return ports


def settle_ports(
    paths: StatePaths, wanted_ports: Mapping[str, int], reserved: ReservedPorts
) -> dict[str, int]:
    """Return a port for every name, and keep them in `ports.json`; call it while no service runs.

    All of them are `reserved`: the caller releases those of a service before it starts it. A service gets the
    port that `wanted_ports` names, else the one of the last time, else the usual one, or a free one if that
    is taken.

    Raises:
        ServiceError: a port that `wanted_ports` names is itself taken: who set it waits for the service
            there. If another port of the service is taken, it moves with a warning.
    """
    recalled = recalled_ports(paths)
    settled: dict[str, int] = {}
    for name, usual in USUAL_PORTS.items():
        preferred, *others = filter(None, (wanted_ports.get(name), recalled.get(name), usual))
        settled |= choose_ports(name, preferred, *others, avoid=settled.values(), reserved=reserved)
        if settled[name] != preferred:
            inner = ports_of(name, preferred).values()
            taken = next((port for port in inner if port in settled.values() or not is_free(port)), preferred)
            if name in wanted_ports and taken == preferred:
                raise ServiceError(
                    f"expected port {taken} for {name}, as {ENV_PREFIX}{name.upper()}_PORT says, found that "
                    "another program listens there (`ss -ltnp` shows which). End that program, or set "
                    "another port."
                )
            logger.warning("port %d is taken, so %s listens on %d", taken, name, settled[name])
    write_private(paths.ports, json.dumps(settled, indent=2) + "\n")
    return settled
