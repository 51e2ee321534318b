"""A DAG bundle whose every content is a version: a run keeps the DAG files and the tools that it started with.

Airflow pins a run to its bundle's version: its scheduler then takes the tasks that the DAG had, and a worker
parses that version's files. Owns `bundle_versions`, from which a worker makes the files of a version.
https://airflow.apache.org/docs/apache-airflow/stable/administration-and-deployment/dag-bundles.html
"""

import hashlib
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from airflow.dag_processing.bundles.base import BaseDagBundle, BundleVersion

from toolformer_ops.airflow_tasks.bundles.dag_tools import TOOLS_FILE, look_for_tools, to_json
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.storage.postgres import database, queries

Contents = dict[str, bytes | None]
"""The files that make a version, by name; None for a file that may not be read, which no version holds."""
_PACKAGE_FILE = "package.txt"
"""In the folder of a version: `package_hash` of the package that made its DAG files."""


class VersionedBundle(BaseDagBundle):
    """Files of this deployment as DAG files, with the tools that have tasks in them."""

    supports_versioning = True
    _newest: str | None = None

    @abstractmethod
    def sources(self) -> Contents:
        """The files as they are now, without the tools."""

    @abstractmethod
    def dag_file(self, name: str, content: bytes | None) -> tuple[str, str]:
        """The name and the text of the DAG file of one of them."""

    @abstractmethod
    def package_hash(self) -> str:
        """The hash of what else decides the text of a DAG file; it differs between packages."""

    @property
    def path(self) -> Path:
        """The folder with the DAG files."""
        return self.versions_dir / self.version if self.version else self.base_dir / "dags"

    def get_current_version(self) -> BundleVersion:
        """The hash of the files, as of the last refresh."""
        return BundleVersion(self.version or self._newest or content_hash(self._contents()))

    def initialize(self) -> None:
        """Make the DAG files. Many tasks ask for a version at once; the first of them makes its files.

        Files that another package made are made anew: they may import modules that moved since.

        Raises:
            ConfigurationError: the version was never stored.
            DatabaseError: Postgres does not answer.
        """
        package = self.path / _PACKAGE_FILE
        if self.version is None:
            self.refresh()
        elif not package.exists() or package.read_text(encoding="utf-8") != self.package_hash():
            rows = database.fetch_all(
                database.connect(load_settings()), queries.bundles.files, version=self.version
            )
            if not rows:
                raise ConfigurationError(
                    f"expected the files of version {self.version} in bundle_versions, found none. Does the "
                    "dag processor write into this database (TOOLFORMER_DATABASE_DSN)? Clear the run with "
                    "Airflow's newest version of the DAG."
                )
            self.versions_dir.mkdir(parents=True, exist_ok=True)
            contents: Contents = {row.name: bytes(row.content) for row in rows}
            with self.lock(), tempfile.TemporaryDirectory(dir=self.versions_dir) as folder:
                if self.path.is_dir():  # a task may read it, so each file is replaced in its place
                    self._write(contents, self.path)
                else:
                    unfinished = Path(folder) / self.version
                    self._write(contents, unfinished)
                    unfinished.rename(self.path)
        super().initialize()

    def refresh(self) -> None:
        """Make the DAG files of what there is, and remove those whose source is gone.

        A new version is stored first.

        Raises:
            ConfigurationError: the tools cannot be looked for.
            DatabaseError: Postgres does not answer. Airflow continues with the files that it has, and looks
            again.
        """
        contents = self._contents()
        version = content_hash(contents)
        if version != self._newest:
            with database.transaction(database.connect(load_settings())) as connection:
                for name, content in contents.items():
                    if content is not None:
                        database.execute(
                            connection, queries.bundles.store, version=version, name=name, content=content
                        )
        written = self._write(contents, self.path)
        for target in self.path.glob("*.py"):
            if target.name not in written:
                target.unlink(missing_ok=True)
            elif version != self._newest:
                target.touch()  # Airflow parses what is newer at once, and a tool changes no DAG file
        self._newest = version

    def _contents(self) -> Contents:
        return {**self.sources(), TOOLS_FILE: to_json(look_for_tools())}

    def _write(self, contents: Contents, folder: Path) -> set[str]:
        """Write the files that are not there as they should be; returns the names of all.

        The file that says which package made them is the last.
        """
        folder.mkdir(parents=True, exist_ok=True)
        texts = {TOOLS_FILE: (contents.get(TOOLS_FILE) or b"").decode()}
        for name, content in contents.items():
            if name != TOOLS_FILE:
                file_name, text = self.dag_file(name, content)
                texts[file_name] = text
        if not texts[TOOLS_FILE]:  # a version from before tools were part of it
            del texts[TOOLS_FILE]
        texts[_PACKAGE_FILE] = self.package_hash()
        for file_name, text in texts.items():
            target = folder / file_name
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                replace_file(target, text)
        return set(texts)


def content_hash(contents: Mapping[str, bytes | None]) -> str:
    """16 hexadecimal digits that follow from the names and the contents.

    An audit computes them again from `bundle_versions`, which holds no file that may not be read.
    """
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        if content is not None:
            digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]
