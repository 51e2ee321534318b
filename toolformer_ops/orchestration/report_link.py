"""A button on the task that made a run's evaluation report; the page in the Airflow UI serves it (`run_page/evaluation.py`)."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from toolformer_ops.config import load_settings

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class ReportLink(BaseOperatorLink):
    """The link."""

    name = "Evaluation report"

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:
        """The report's address; holds no secret."""
        path = f"/toolformer/reports/{quote(ti_key.dag_id, safe='')}/{quote(ti_key.run_id, safe='')}"
        return f"{load_settings().airflow_url.rstrip('/')}{path}"
