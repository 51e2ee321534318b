"""The page of reference about the DAGs, which `make site` makes."""

from airflow.sdk import DAG

from docs import reference_pages


def test_a_page_has_every_dag_with_its_form_and_its_tasks(local_dags: dict[str, DAG]) -> None:
    page = reference_pages.dags(local_dags.values())
    assert len(local_dags) > 5
    for dag_id, dag in local_dags.items():
        chapter = page.partition(f"\n## {dag_id}\n")[2].partition("\n## ")[0]
        form, _, tasks = chapter.partition(f"### Form of {dag_id}")[2].partition(f"### Tasks of {dag_id}")
        assert [name for name in dag.params if f"| `{name}` |" not in form] == []
        assert [task for task in dag.task_ids if f"| `{task}` |" not in tasks] == []
