"""What runs, where it listens, since when, and how much memory it takes."""

import time
from dataclasses import dataclass

import psutil

from toolformer_ops.config import Settings
from toolformer_ops.local_services.port_memory import recalled_ports
from toolformer_ops.local_services.ports import LOOPBACK
from toolformer_ops.local_services.programs import PROGRAMS_OF_SERVICE, SERVICES
from toolformer_ops.local_services.service_settings import StatePaths
from toolformer_ops.local_services.supervision import Supervisor


@dataclass(frozen=True)
class ServiceStatus:
    """One program: its supervisor's word (RUNNING, STOPPED, FATAL, ...), where it listens, its process and its memory."""

    name: str
    state: str
    address: str
    process_id: int
    uptime_seconds: int
    memory_bytes: int


def status(settings: Settings) -> list[ServiceStatus]:
    """Every program that the supervisor knows, in the order of their starting; empty when it does not run."""
    paths = StatePaths(settings.state_dir)
    ports = recalled_ports(paths)
    addresses = {
        "postgres": f"{LOOPBACK}:{ports.get('postgres')}",
        "object-store": f"http://{LOOPBACK}:{ports.get('s3')}",
        "airflow-api-server": f"http://{LOOPBACK}:{ports.get('airflow')}",
    }
    reports = Supervisor(paths).reports()
    now = time.time()
    return [
        ServiceStatus(
            name=name,
            state=reports[name].state,
            address=addresses.get(name, ""),
            process_id=reports[name].process_id,
            uptime_seconds=int(now - reports[name].started_at) if reports[name].state == "RUNNING" else 0,
            memory_bytes=_memory_bytes(reports[name].process_id),
        )
        for service in SERVICES
        for name in PROGRAMS_OF_SERVICE[service]
        if name in reports
    ]


def _memory_bytes(process_id: int) -> int:
    """Memory of a process and all that it started, shared pages divided among those that share them; 0 when it is gone."""
    if not process_id:
        return 0
    try:
        process = psutil.Process(process_id)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for member in family:
        try:
            total += member.memory_full_info().pss
        except psutil.Error:  # it has just ended, or is not ours to look into
            continue
    return total
