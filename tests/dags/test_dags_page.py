"""The pages of reference about the DAGs and the parameters of a run, which `make site` makes."""

from airflow.sdk import DAG

from docs import reference_pages
from toolformer_ops.runs.choices import RunChoices


def test_a_page_has_every_dag_with_its_form_and_its_tasks(local_dags: dict[str, DAG]) -> None:
    page = reference_pages.dags(local_dags.values())
    assert len(local_dags) > 5
    for dag_id, dag in local_dags.items():
        chapter = page.partition(f"\n## {dag_id}\n")[2].partition("\n## ")[0]
        form, _, tasks = chapter.partition(f"### Form of {dag_id}")[2].partition(f"### Tasks of {dag_id}")
        assert [name for name in dag.params if f"| `{name}` |" not in form] == []
        assert [task for task in dag.task_ids if f"| `{task}` |" not in tasks] == []


def test_one_table_has_every_parameter_with_what_each_preset_sets() -> None:
    page = reference_pages.parameters()
    assert [name for name in RunChoices.model_fields if page.count(f"\n| `{name}` |") != 1] == []
    assert "| `finetune_steps` | Most optimiser steps. | 2000 | 12 |  | Finetuning |" in page
    assert page.count("| Sampling |") == 5
