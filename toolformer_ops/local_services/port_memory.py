"""Which port each embedded service has, kept in `ports.json` so that addresses stay the same from one `up` to the next."""

import json
import logging
from collections.abc import Collection, Mapping

from toolformer_ops.local_services.ports import choose_port
from toolformer_ops.local_services.private_files import write_private
from toolformer_ops.local_services.seaweedfs import PORT_OPTIONS, partner_offset
from toolformer_ops.local_services.service_settings import USUAL_PORTS, StatePaths

logger = logging.getLogger(__name__)

# What has a fixed place for people to type; the inner ports of SeaweedFS follow that of S3.
_NAMES = ("postgres", "airflow", *PORT_OPTIONS)
_SERVICE_OF_PORT = {"postgres": "postgres", "airflow": "airflow"} | dict.fromkeys(PORT_OPTIONS, "object_store")


def recalled_ports(paths: StatePaths) -> dict[str, int]:
    """The ports of the last `up`, by name; empty before the first."""
    if not paths.ports.exists():
        return {}
    try:
        known = json.loads(paths.ports.read_text(encoding="utf-8"))
        return {name: int(known[name]) for name in _NAMES if name in known}
    except (ValueError, TypeError):
        logger.warning("%s could not be read, so ports are chosen anew", paths.ports)
        return {}


def settle_ports(paths: StatePaths, asked: Mapping[str, int], running: Collection[str]) -> dict[str, int]:
    """A port for every name, written to `ports.json`.

    A running service keeps its port. Any other gets the port `asked` for, else the recalled one, else the usual one, else one
    that is free.
    """
    recalled = recalled_ports(paths)
    settled = {name: port for name, port in recalled.items() if _SERVICE_OF_PORT[name] in running}
    for name, port in asked.items():
        if settled.get(name, port) != port:
            logger.warning(
                "%s stays on port %d while it runs; `make down` first to move it to %d", name, settled[name], port
            )
    for name in _NAMES:
        if name not in settled:
            wanted = [asked.get(name), recalled.get(name), _usual_port(name, settled)]
            settled[name] = choose_port(wanted, settled.values(), partner_offset(name))
            first = next(port for port in wanted if port is not None)
            if settled[name] != first:
                level = logging.WARNING if name in USUAL_PORTS else logging.DEBUG
                logger.log(level, "port %d is taken, so %s listens on %d", first, name, settled[name])
    write_private(paths.ports, json.dumps(settled, indent=2) + "\n")
    return settled


def _usual_port(name: str, settled: Mapping[str, int]) -> int:
    if name in USUAL_PORTS:
        return USUAL_PORTS[name]
    return settled.get("s3", USUAL_PORTS["s3"]) + list(PORT_OPTIONS).index(name)
