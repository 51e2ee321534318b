"""The link from a run to its page of evaluations: where Airflow itself serves the page, to users who are logged in to it.

Not a presigned S3 address: whoever has one can read what it names, it would lie in an XCom for good, and it ends after days. The
page is served by `report_plugin.py`; `toolformer-ops report --run RUN --out FILE` fetches it too.
"""

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from toolformer_ops.config import load_settings

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

URL_PREFIX = "/toolformer"
"""Below Airflow's own address."""


def report_path(dag_id: str, run_id: str) -> str:
    """Path of a run's page below `URL_PREFIX`."""
    return f"/reports/{quote(dag_id, safe='')}/{quote(run_id, safe='')}"


class ReportLink(BaseOperatorLink):
    """A button on the task that made the page."""

    name = "Evaluation report"

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:
        """The page's address; holds no secret."""
        return f"{load_settings().airflow_url.rstrip('/')}{URL_PREFIX}{report_path(ti_key.dag_id, ti_key.run_id)}"
