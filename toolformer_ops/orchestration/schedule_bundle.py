"""Schedule files as Airflow sees them: a DAG bundle with one small DAG file for each, so that each fails alone.

Airflow's import errors are one for each DAG file, and take all DAGs of that file with them; so one DAG file for all schedules would
not do. The files are made again whenever Airflow looks into the bundle, and on each worker before a task.
https://airflow.apache.org/docs/apache-airflow/stable/administration-and-deployment/dag-bundles.html
"""

from pathlib import Path

from airflow.dag_processing.bundles.base import BaseDagBundle

from toolformer_ops.config import load_settings
from toolformer_ops.orchestration.schedules import schedule_files
from toolformer_ops.storage.shared_files import replace_file

DAG_FILE = '''"""An Airflow DAG, made from a schedule file by {module}; do not edit."""

from toolformer_ops.orchestration.nightly import nightly_dag

dag = nightly_dag({path!r})
'''


class ScheduleBundle(BaseDagBundle):
    """The schedule files of `TOOLFORMER_SCHEDULES_DIR`, each as a DAG file."""

    supports_versioning = False

    @property
    def path(self) -> Path:
        """The folder with the DAG files."""
        return self.base_dir / "dags"

    def get_current_version(self) -> None:
        """None: a run reads its file as it is."""
        return

    def initialize(self) -> None:
        """Make the DAG files. A worker does this before each task, so that it removes none: other processes may be reading them."""
        self.path.mkdir(parents=True, exist_ok=True)
        for source in schedule_files(load_settings().schedules_dir):
            text = DAG_FILE.format(module=__name__, path=str(source))
            target = self.path / f"{source.stem}.py"
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                replace_file(target, text)
        super().initialize()

    def refresh(self) -> None:
        """Make the DAG files, and remove those whose schedule file is gone."""
        self.initialize()
        wanted = {f"{source.stem}.py" for source in schedule_files(load_settings().schedules_dir)}
        for target in self.path.glob("*.py"):
            if target.name not in wanted:
                target.unlink(missing_ok=True)
