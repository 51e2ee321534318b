"""`up` and `down`: start and stop the embedded services of one state folder, one at a time."""

import fcntl
import logging
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import ServiceError
from toolformer_ops.local_services import seaweedfs
from toolformer_ops.local_services.accounts import relocated_directory
from toolformer_ops.local_services.port_memory import recalled_ports
from toolformer_ops.local_services.programs import AIRFLOW, POSTGRES, PROGRAMS_OF_SERVICE, SERVICES
from toolformer_ops.local_services.service_settings import StatePaths
from toolformer_ops.local_services.startup import Startup, recover_postgres
from toolformer_ops.local_services.supervision import Supervisor

logger = logging.getLogger(__name__)


def up(settings: Settings, only: Collection[str] | None = None) -> Settings:
    """Start the services that do not run, repair what a crash left, and return the settings that lead to them.

    Args:
        settings: whose `state_dir` everything lies in.
        only: which of `programs.SERVICES`; Airflow brings Postgres along. None: all.

    Raises:
        ServiceError: a service cannot be started; the message ends with the last lines of its log.
    """
    wanted = _wanted(only)
    paths = StatePaths(settings.state_dir)
    paths.make()
    with _alone(paths):
        startup = Startup(settings, paths, wanted)
        try:
            found = startup.run()
        except ServiceError:
            lost = startup.give_up_lost_ports()
            if not lost:
                raise
            logger.warning("another program took the port of %s in the meantime: once more, on others", ", ".join(lost))
            found = Startup(settings, paths, wanted).run()
    load_settings.cache_clear()  # the `environment` file is another now
    return found


def down(settings: Settings) -> bool:
    """Stop every service and the supervisor, Postgres last; False when nothing ran."""
    paths = StatePaths(settings.state_dir)
    if not paths.state.exists():
        return False
    with _alone(paths):
        supervisor = Supervisor(paths)
        stopped = supervisor.shut_down([PROGRAMS_OF_SERVICE[service] for service in reversed(SERVICES)])
        for message in [*supervisor.recover(), *recover_postgres(paths)]:
            logger.warning("%s", message)
            stopped = True
        seaweedfs.remove_sockets(recalled_ports(paths))
        paths.started.unlink(missing_ok=True)
        return stopped


def delete_state(settings: Settings) -> None:
    """Stop everything and delete the state folder, and the data of a Postgres that lies elsewhere because we are root."""
    down(settings)
    for folder in (settings.state_dir, relocated_directory(settings.state_dir / "postgres")):
        if folder.exists():
            shutil.rmtree(folder)


def _wanted(only: Collection[str] | None) -> set[str]:
    wanted = set(SERVICES if only is None else only)
    unknown = wanted - set(SERVICES)
    if unknown:
        raise ServiceError(f"expected services among {', '.join(SERVICES)}, found {', '.join(sorted(unknown))}.")
    return wanted | {POSTGRES} if AIRFLOW in wanted else wanted


@contextmanager
def _alone(paths: StatePaths) -> Iterator[None]:
    """Hold the lock of the state folder, waiting for another `up` or `down` to end."""
    with paths.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another `up` or `down` works in %s: waiting for it", paths.state)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
