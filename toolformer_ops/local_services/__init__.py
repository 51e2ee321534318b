"""Postgres, S3 and Airflow on one machine, without Docker and without being root.

`up`, `down` and `status` are what `make up` and its like call; `start_postgres` and `start_object_store` give tests a server of
their own. Names are loaded when they are first used, since every stage passes by here.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolformer_ops.errors import ServiceError
    from toolformer_ops.local_services.lifecycle import delete_state, down, up
    from toolformer_ops.local_services.postgres import PostgresAddress, RunningPostgres, start_postgres
    from toolformer_ops.local_services.seaweedfs import ObjectStoreAddress, RunningObjectStore, start_object_store
    from toolformer_ops.local_services.service_status import ServiceStatus, status

__all__ = [
    "ObjectStoreAddress",
    "PostgresAddress",
    "RunningObjectStore",
    "RunningPostgres",
    "ServiceError",
    "ServiceStatus",
    "delete_state",
    "down",
    "start_object_store",
    "start_postgres",
    "status",
    "up",
]

_HOMES = {
    "ServiceError": "errors",
    "up": "lifecycle",
    "down": "lifecycle",
    "delete_state": "lifecycle",
    "PostgresAddress": "postgres",
    "RunningPostgres": "postgres",
    "start_postgres": "postgres",
    "ObjectStoreAddress": "seaweedfs",
    "RunningObjectStore": "seaweedfs",
    "start_object_store": "seaweedfs",
    "ServiceStatus": "service_status",
    "status": "service_status",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
