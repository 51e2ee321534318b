"""The DAG files of this package as a DAG bundle with versions, so that a run keeps the tools that it started with."""

from toolformer_ops.airflow_tasks.versioned_bundle import Contents, VersionedBundle
from toolformer_ops.config import SHIPPED


class DagsBundle(VersionedBundle):
    """The files of `dags/`, as this package brings them."""

    def sources(self) -> Contents:
        """The files by name."""
        return {path.name: path.read_bytes() for path in sorted((SHIPPED / "dags").glob("*.py"))}

    def dag_file(self, name: str, content: bytes | None) -> tuple[str, str]:
        """The file as it is."""
        return name, (content or b"").decode()
