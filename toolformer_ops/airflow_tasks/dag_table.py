"""The table of DAGs in `docs/dags.md`, made from the DAGs themselves: `python -m toolformer_ops.airflow_tasks.dag_table`.

A test fails when the page is stale. Does not run anything.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import REPOSITORY
from toolformer_ops.runs.choices import RunChoices

if TYPE_CHECKING:
    from airflow.sdk import DAG

PAGE = REPOSITORY / "docs" / "dags.md"

INTRODUCTION = """# The DAGs

Made by `python -m toolformer_ops.airflow_tasks.dag_table` from `dags/`; do not edit. Every task starts one command,
`python -m toolformer_ops stage ...`, on the Airflow worker, or with `TOOLFORMER_RUNNER=kubernetes` in a pod
([kubernetes.md](kubernetes.md)). The slots of
a task's pool limit how many run at once.

A task that fails by an error of its own is tried again twice; one that was killed, evicted or met an outage up to twenty times; one
that ends with status 2 or 3 never ([operations.md](operations.md#what-a-red-task-says)).
"""


def page(dags: Iterable["DAG"]) -> str:
    """The whole page in Markdown: one table of DAGs, and for each DAG its text, its form and its tasks."""
    overview, chapters = [], []
    for dag in sorted(dags, key=lambda dag: dag.dag_id):
        assets = sorted({f"`{asset.name}`" for task in dag.tasks for asset in task.outlets})
        overview.append([f"[{dag.dag_id}](#{dag.dag_id})", dag.description, ", ".join(assets), len(dag.tasks)])
        params = {name: dag.params.get_param(name) for name in dag.params}
        form = _table(
            ("Field", "Name in the API", "Default", "Meaning"),
            [
                (param.schema["title"], f"`{name}`", _default(name, param), param.description)
                for name, param in params.items()
            ],
        )
        tasks = _table(
            ("Task", "Mapped over shards", "Pool", "Longest try"),
            [
                (f"`{task.task_id}`", "yes" if task.is_mapped else "", task.pool, task.execution_timeout)
                for task in dag.tasks
            ],
        )
        text = (dag.doc_md or "").strip()
        chapters.append(f"\n## {dag.dag_id}\n\n{text}\n\n### Form\n\n{form}\n### Tasks\n\n{tasks}")
    return "\n".join([INTRODUCTION, _table(("DAG", "What it does", "Makes", "Tasks"), overview), *chapters])


def main() -> None:
    """Write the page."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(REPOSITORY / "dags")
    if bag.import_errors:
        raise SystemExit("\n".join(bag.import_errors.values()))
    PAGE.write_text(page(bag.dags.values()), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: {len(bag.dags)} DAGs\n")


def _default(name: str, param: Any) -> str:
    field = RunChoices.model_fields.get(name)
    if field is None and isinstance(param.value, int):
        return f"`{param.value}`"
    if field is None or field.is_required():
        return "required"  # a deployment's settings may hold a default
    if param.value is None or param.value == []:
        return ""
    return f"`{', '.join(param.value)}`" if isinstance(param.value, list) else f"`{param.value}`"


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
