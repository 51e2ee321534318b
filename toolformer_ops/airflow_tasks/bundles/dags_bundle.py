"""The DAG files of this package as a DAG bundle with versions, so that a run keeps the tools that it started with.

A version holds which tools had tasks. The files themselves are always those that are installed: they call
this package, and a file of an earlier package may not fit it.
"""

from pathlib import Path

from toolformer_ops.airflow_tasks.bundles.versioned_bundle import Contents, VersionedBundle, content_hash
from toolformer_ops.config import SHIPPED


class DagsBundle(VersionedBundle):
    """The files of `dags/`, as this package brings them."""

    def sources(self) -> Contents:
        """The files by name."""
        return {path.name: path.read_bytes() for path in sorted(_installed_folder().glob("*.py"))}

    def dag_file(self, name: str, content: bytes | None) -> tuple[str, str]:
        """The installed file of this name; a file that this package no longer has is as it was stored."""
        installed = _installed_folder() / name
        return name, installed.read_text(encoding="utf-8") if installed.is_file() else (
            content or b""
        ).decode()

    def package_hash(self) -> str:
        """The hash of the installed files."""
        return content_hash(self.sources())


def _installed_folder() -> Path:
    return SHIPPED / "dags"
