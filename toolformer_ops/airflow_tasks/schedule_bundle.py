"""Schedule files as Airflow sees them: a DAG bundle with one small DAG file for each, so that each fails alone.

Airflow's import errors are one for each DAG file, and take all DAGs of that file with them; so one DAG file
for all schedules would not do. A DAG file holds the content of its schedule file, and each content of the
folder is a version of the bundle: a run keeps the one that it started with, and Airflow shows which. Owns
`schedule_versions`, from which a worker makes a version's DAG files.
https://airflow.apache.org/docs/apache-airflow/stable/administration-and-deployment/dag-bundles.html
"""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from airflow.dag_processing.bundles.base import BaseDagBundle, BundleVersion

from toolformer_ops.airflow_tasks.schedules import schedule_files
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ConfigurationError, UsageError
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.local_paths import read_beside
from toolformer_ops.storage.shared_files import replace_file

DAG_FILE = '''"""An Airflow DAG, made from a schedule file by {module}; do not edit."""

from toolformer_ops.airflow_tasks.nightly import nightly_dag

dag = nightly_dag(
    {path!r},
    {content},
)
'''


class ScheduleBundle(BaseDagBundle):
    """The schedule files of `TOOLFORMER_SCHEDULES_DIR`, each as a DAG file, or those of a version of the folder."""

    supports_versioning = True
    _newest: str | None = None

    @property
    def path(self) -> Path:
        """The folder with the DAG files."""
        return self.versions_dir / self.version if self.version else self.base_dir / "dags"

    def get_current_version(self) -> BundleVersion:
        """The hash of all schedule files; of the folder as it was last looked at."""
        return BundleVersion(self.version or self._newest or _version(_contents()))

    def initialize(self) -> None:
        """Make the DAG files; those of a version, which many tasks ask for at once, by the first of them.

        Raises:
            ConfigurationError: nobody stored this version.
            DatabaseError: Postgres does not answer.
        """
        if self.version is None:
            self.refresh()
        elif not self.path.is_dir():
            rows = database.fetch_all(
                database.connect(load_settings()), queries.schedules.files, version=self.version
            )
            if not rows:
                raise ConfigurationError(
                    f"expected the schedule files of version {self.version} in schedule_versions, found none. Does the dag "
                    "processor write into this database (TOOLFORMER_DATABASE_DSN)? Clear the run with Airflow's newest version of "
                    "the DAG."
                )
            self.versions_dir.mkdir(parents=True, exist_ok=True)
            with self.lock(), tempfile.TemporaryDirectory(dir=self.versions_dir) as folder:
                if not self.path.is_dir():
                    _write({row.name: bytes(row.content) for row in rows}, Path(folder) / self.version)
                    (Path(folder) / self.version).rename(self.path)
        super().initialize()

    def refresh(self) -> None:
        """Make the DAG files of the folder as it is, and remove those whose schedule file is gone; a new version is stored first.

        Raises:
            DatabaseError: Postgres does not answer. Airflow continues with the files that it has, and looks
            again.
        """
        contents = _contents()
        version = _version(contents)
        if version != self._newest:
            with database.transaction(database.connect(load_settings())) as connection:
                for name, content in contents.items():
                    if content is not None:
                        database.execute(
                            connection, queries.schedules.store, version=version, name=name, content=content
                        )
        _write(contents, self.path)
        for target in self.path.glob("*.py"):
            if target.stem not in contents:
                target.unlink(missing_ok=True)
        self._newest = version


def _contents() -> dict[str, bytes | None]:
    """The schedule files of the folder, by the name of the schedule; None for one that may not be read, whose DAG file says why."""
    contents: dict[str, bytes | None] = {}
    for source in schedule_files(load_settings().schedules_dir):
        try:
            contents[source.stem] = read_beside(source.parent, source.name)
        except (UsageError, OSError):
            contents[source.stem] = None
    return contents


def _version(contents: Mapping[str, bytes | None]) -> str:
    """16 hexadecimal digits that follow from the names and the contents."""
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content or b"").digest())
    return digest.hexdigest()[:16]


def _write(contents: Mapping[str, bytes | None], folder: Path) -> None:
    """Write the DAG files that are not there as they should be."""
    folder.mkdir(parents=True, exist_ok=True)
    schedules = load_settings().schedules_dir or Path()
    for name, content in contents.items():
        lines = "\n    ".join(repr(line) for line in (content or b"").splitlines(keepends=True)) or repr(
            content
        )
        text = DAG_FILE.format(module=__name__, path=str(schedules / f"{name}.toml"), content=lines)
        target = folder / f"{name}.py"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            replace_file(target, text)
