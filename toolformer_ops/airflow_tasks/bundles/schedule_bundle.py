"""Schedule files as Airflow sees them: a DAG bundle with one small DAG file for each, so that each fails alone.

Airflow's import errors are one for each DAG file, and take all DAGs of that file with them; so one DAG file
for all schedules would not do. A DAG file holds the content of its schedule file.
"""

from pathlib import Path

from toolformer_ops.airflow_tasks.bundles.versioned_bundle import Contents, VersionedBundle, content_hash
from toolformer_ops.airflow_tasks.nights.schedules import schedule_files
from toolformer_ops.config import load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.corpora.local_paths import read_beside

DAG_FILE = '''"""An Airflow DAG, made from a schedule file by {module}; do not edit."""

from toolformer_ops.airflow_tasks.bundles.dag_tools import tools_beside
from toolformer_ops.airflow_tasks.nights.nightly_dag import nightly_dag

dag = nightly_dag(
    {path!r},
    {content},
    tools_beside(__file__),
)
'''


class ScheduleBundle(VersionedBundle):
    """The schedule files of `TOOLFORMER_SCHEDULES_DIR`, each as a DAG file."""

    def sources(self) -> Contents:
        """The schedule files of the folder, by the name of the schedule.

        The DAG file of a schedule that may not be read says why.
        """
        contents: Contents = {}
        for source in schedule_files(load_settings().schedules_dir):
            try:
                contents[source.stem] = read_beside(source.parent, source.name)
            except (UsageError, OSError):
                contents[source.stem] = None
        return contents

    def dag_file(self, name: str, content: bytes | None) -> tuple[str, str]:
        """A DAG file that makes the DAG of a schedule with this content."""
        folder = load_settings().schedules_dir or Path()
        lines = "\n    ".join(repr(line) for line in (content or b"").splitlines(keepends=True))
        text = DAG_FILE.format(
            module=__name__, path=str(folder / f"{name}.toml"), content=lines or repr(content)
        )
        return f"{name}.py", text

    def package_hash(self) -> str:
        """The hash of the text around a schedule's content."""
        return content_hash({__name__: DAG_FILE.encode()})
