"""The generated page of DAGs."""

from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.dag_table import PAGE, page


def test_the_page_of_dags_is_fresh(local_dags: dict[str, DAG]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(local_dags.values()), (
        "docs/dags.md is stale: run `python -m toolformer_ops.airflow_tasks.dag_table`"
    )
