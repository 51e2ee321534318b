"""Postgres, S3 and Airflow on one machine, without Docker and without being root.

`start_postgres` and `start_object_store` give tests a server of their own.
"""

from toolformer_ops.local_services.errors import ServiceError
from toolformer_ops.local_services.postgres import PostgresAddress, RunningPostgres, start_postgres
from toolformer_ops.local_services.seaweedfs import ObjectStoreAddress, RunningObjectStore, start_object_store

__all__ = [
    "ObjectStoreAddress",
    "PostgresAddress",
    "RunningObjectStore",
    "RunningPostgres",
    "ServiceError",
    "start_object_store",
    "start_postgres",
]
