"""A person's yes before a model is finetuned on a release, or before the finetuned model is published (the choice `approve`).

Airflow's ApprovalOperator asks: the task waits without a process, in the state `awaiting_input`, until
a person answers in the UI (Required Actions) or by the API. Airflow takes the first answer alone, and only
from who may edit the DAG and, if the setting `approvers` names people, is one of them. Who asks for no yes
has two tasks more that the scheduler skips.

A no is an answer and no failure: what follows is skipped and the run ends green. No answer within
`approval_hours` counts as no; the time limit of a night is longer by them (`nights/nightly_dag.py`). What
exists stays: `finetune_release` trains on the release of such a run. Owns `approvals`.
"""

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from sqlalchemy import Connection

from toolformer_ops.airflow_tasks.defaults import CPU_POOL, TIME_LIMITS
from toolformer_ops.airflow_tasks.run_ids import annotation_run_id
from toolformer_ops.airflow_tasks.run_notes import airflow_client, set_note
from toolformer_ops.config import load_settings
from toolformer_ops.runs.choices import Approve

APPROVALS: dict[Approve, str] = {
    "before_finetuning": "approve_finetuning",
    "before_publishing": "approve_publishing",
}
"""The task that asks, by the choice."""
QUESTIONS: dict[Approve, str] = {
    "before_finetuning": "Finetune on the release?",
    "before_publishing": "Publish the finetuned model?",
}
NEXT: dict[Approve, str] = {
    "before_finetuning": "The model is being finetuned.",
    "before_publishing": "The model is being published.",
}
"""What a yes starts."""
CALLS_SHOWN = 10
TIME_TO_END = datetime.timedelta(minutes=15)
"""What a run needs to end well after a no."""


class AskForApproval(ApprovalOperator):
    """Asks a person, with what the run found as the text, and stores the answer, for which the `step` waits."""

    # The text holds calls of documents, which no template engine may read.
    template_fields: Sequence[str] = ()

    def __init__(self, *, step: Approve, **kwargs: Any) -> None:
        settings = load_settings()
        self.step: Approve = step
        super().__init__(
            task_id=APPROVALS[step],
            subject=QUESTIONS[step],
            defaults=self.REJECT,
            response_timeout=datetime.timedelta(hours=settings.approval_hours),
            pool=CPU_POOL,
            execution_timeout=TIME_LIMITS["approve"],
            assigned_users=[{"id": name, "name": name} for name in settings.approver_names] or None,
            **kwargs,
        )

    def execute(self, context: Context) -> Any:
        """Ask, and let the task wait; the run's note says for what.

        A task that is tried again takes an answer that was given.

        Airflow would ask anew, and forget the answer: that to a task whose waiting its scheduler had not read
        yet (3.3.2 then fails the task, also while it takes the answer, and tries it again), and one that
        could not be stored.

        Raises:
            AirflowError: Airflow does not say whether there is an answer.
            DatabaseError: Postgres does not answer.
        """
        from toolformer_ops.storage.postgres import database, queries

        settings, instance = load_settings(), context["ti"]
        run_id = annotation_run_id(instance.dag_id, instance.run_id)
        rows = database.fetch_all(database.connect(settings), queries.summary.approvals, run_id=run_id)
        # 1. The stored answer: to an earlier try, or from before the task was cleared, which then asks anew.
        answer, stored = None, next((row for row in rows if row.step == self.step), None)
        answered_at = stored and stored.answered_at.replace(tzinfo=datetime.UTC)
        if instance.try_number > 1 and stored and stored.max_tries == instance.max_tries:
            name = stored.answered_by
            answer = {
                "chosen_options": [self.APPROVE if stored.is_approved else self.REJECT],
                "params_input": {},
                "responded_at": answered_at,
                "responded_by_user": {"id": name, "name": name} if name else None,
            }
        # 2. An answer that only Airflow has.
        elif instance.try_number > 1:
            with airflow_client(settings) as airflow:
                answer = airflow.answer(instance.dag_id, instance.run_id, self.task_id)
            answer = None if answer and answer["responded_at"] == answered_at else answer
        if answer:
            return self.execute_complete(context, answer)
        # 3. None: ask.
        with database.transaction(database.connect(settings)) as connection:
            summary = what_was_found(connection, run_id)
        self.response_timeout = time_to_answer(context, settings.approval_hours)
        address = f"{settings.airflow_url.rstrip('/')}/dags/{instance.dag_id}/runs/{quote(instance.run_id, safe='')}"
        until = datetime.datetime.now(datetime.UTC) + self.response_timeout
        self.body = f"{summary}\n\n[The run, with all calls]({address}). No answer until {until:%Y-%m-%d %H:%M} UTC counts as no."
        set_note(
            context,
            f"{self.subject} Waits for an answer until {until:%Y-%m-%d %H:%M} UTC: "
            f"{address}/required_actions",
        )
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Store who answered what, and say it in the run's note; a no skips what follows.

        Raises:
            DatabaseError: Postgres does not answer; the next try takes the same answer.
        """
        from toolformer_ops.runs.summary import answer_in_words
        from toolformer_ops.storage.postgres import database, queries

        if "error" not in event:
            instance, person = context["ti"], event["responded_by_user"]
            is_approved = event["chosen_options"] == [self.APPROVE]
            answer = {
                "step": self.step,
                "is_approved": is_approved,
                "answered_by": person["name"] if person else None,
                "answered_at": event["responded_at"],
            }
            database.execute(
                database.connect(load_settings()),
                queries.runs.set_approval,
                run_id=annotation_run_id(instance.dag_id, instance.run_id),
                max_tries=instance.max_tries,
                **answer,
            )
            follows = NEXT[self.step] if is_approved else "Nothing follows: the run ends."
            set_note(context, f"{answer_in_words(**answer)}. {follows}")
        return super().execute_complete(context, event)


def time_to_answer(context: Context, approval_hours: float) -> datetime.timedelta:
    """How long an answer is waited for: so long that a run with a time limit still ends by itself, and green."""
    longest = datetime.timedelta(hours=approval_hours)
    limit, started = context["dag"].dagrun_timeout, context["dag_run"].start_date
    if limit is None or started is None:
        return longest
    left = started + limit - TIME_TO_END - datetime.datetime.now(datetime.UTC)
    return max(min(longest, left), datetime.timedelta(minutes=1))


def what_was_found(connection: Connection, run_id: str) -> str:
    """What a person looks at before a yes, in Markdown: thresholds with their counts, best and worst calls, the summary.

    Of a run that only finetunes they are those of the run that made its release. Texts of documents are code,
    without the characters that end it.
    """
    from toolformer_ops.runs.placebo_rates import kept_by_chance
    from toolformer_ops.runs.summary import BestCall, summarise
    from toolformer_ops.storage.postgres import database, queries

    run_id = database.fetch_one(connection, queries.summary.annotating_run, run_id=run_id).run_id
    counts = database.fetch_all(connection, queries.summary.rates, run_id=run_id)
    table = [
        f"| {row.tool} | {row.threshold:g} | {row.calls:,} | {row.texts:,} | {kept_by_chance(row)} |"
        for row in counts
    ]
    calls = database.fetch_all(connection, queries.summary.released_calls, run_id=run_id, at_most=CALLS_SHOWN)
    best = [f"- {BestCall.of(row)}" for row in calls if row.is_best]
    worst = [f"- {BestCall.of(row)}" for row in reversed(calls) if not row.is_best]
    summary = summarise(connection, run_id)
    chosen = [tool for tool in summary.tools if tool.is_chosen]
    about_run = replace(summary, tools=tuple(chosen)).as_text()
    return "\n".join(
        [
            "| tool | kept from, nats | calls kept | texts | of these by chance |",
            "|---|---:|---:|---:|---|",
            *table,
            "",
            "The calls that save most:",
            "",
            *best,
            "",
            *(["The kept calls that save least:", "", *worst, ""] if worst else []),
            "The run:",
            "",
            # The calls above are of all.
            *(line for line in about_run.splitlines() if not line.startswith("- New call: ")),
        ]
    )
