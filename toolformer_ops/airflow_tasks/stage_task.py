"""What the task of a stage does beside its stage, whether that runs as a process or as a pod.

It starts nothing if Postgres shows that there is no work, attaches ids to the events of its assets, returns
what the stage printed last, and skips tasks that are not needed then. A task that skips itself starts a
process to do so; a task that Airflow's scheduler skips starts none, and has no log. So the reasons are in the
log of the task before, and in its XCom `skipped`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk import AssetAlias, BaseOperator, Context
from airflow.sdk.bases.skipmixin import XCOM_SKIPMIXIN_KEY, XCOM_SKIPMIXIN_SKIPPED

from toolformer_ops.airflow_tasks.defaults import release_asset
from toolformer_ops.airflow_tasks.nothing_to_do import QUESTIONS
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.storage.corpora.addresses import CorpusAddress

SKIPPED = "skipped"
"""Key of the XCom with the reason by skipped task."""

NotNeeded = Callable[[Context, Any], Mapping[str, str]]
"""From Airflow's context and what the stage printed: by the id of each task that is not needed, the
reason."""


class StageTask(BaseOperator):
    """A stage's task; `StageProcess` and `StagePod` run it.

    Args:
        shard: `I/N` of a mapped task.
        asset_extra: ids to attach to the events of the task's outlets; templated.
        asset_facts: called once the stage has ended well; what it returns is attached, too.
        returns_result: whether the task returns the stage's last line on stdout, parsed as JSON: ids or
        counts.
        not_needed: which tasks directly after this one are skipped, by that line, which the task then
        returns, too.
        tells: called with that line, also if the stage failed.
    """

    arguments: Any
    """What follows `python -m toolformer_ops`; templated."""
    printed: Any = None
    """The stage's last line, parsed; None if it is none, or was not asked for."""

    def __init__(
        self,
        *,
        shard: str | None = None,
        asset_extra: Mapping[str, str] | None = None,
        asset_facts: Callable[[], Mapping[str, str]] | None = None,
        returns_result: bool = False,
        not_needed: NotNeeded | None = None,
        tells: Callable[[Context, Any], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.shard = shard
        self.asset_extra = asset_extra
        self.asset_facts = asset_facts
        self.returns_result = returns_result or not_needed is not None
        self.not_needed = not_needed
        self.tells = tells

    @property
    def inherits_from_skipmixin(self) -> bool:
        """Whether Airflow's scheduler looks for skipped tasks after this one (NotPreviouslySkippedDep)."""
        return self.not_needed is not None

    @property
    def reads_result(self) -> bool:
        """Whether the stage's last line is asked for."""
        return self.returns_result or self.tells is not None

    @property
    def stage_name(self) -> str:
        """For messages."""
        return f"stage {self.arguments[1]}" if self.arguments[:1] == ["stage"] else str(self.task_id)

    @property
    def stage_arguments(self) -> list[str]:
        """The arguments, with `--shard I/N` for a mapped task."""
        return [*self.arguments, "--shard", self.shard] if self.shard else [*self.arguments]

    def has_nothing_to_do(self) -> bool:
        """Whether Postgres shows that the stage would find nothing to do; the log says so.

        What hinders the question hinders the stage as well, which then says so, and waits for what is away:
        so it starts.

        Raises:
            AirflowSkipException: the run does not need the task.
        """
        question = QUESTIONS.get(self.arguments[1]) if self.arguments[:1] == ["stage"] else None
        options = dict(zip(self.arguments[2::2], self.arguments[3::2], strict=False))
        if question is None or "--run" not in options:
            return False
        try:
            reason = question(
                load_settings(), options["--run"], options.get("--tool", ""), self.shard or "0/1"
            )
        except ToolformerError as error:
            self.log.warning("it is not known whether the stage has work, so it starts: %s", error)
            return False
        if reason:
            self.log.info("the stage has nothing to do and is not started: %s", reason)
        return bool(reason)

    def tell(self, context: Context) -> None:
        """Hand on what the stage printed, however it ended."""
        if self.tells is not None and self.printed is not None:
            self.tells(context, self.printed)

    def finish(self, context: Context) -> Any:
        """What follows a stage that did its work: ids for asset events, tasks to skip.

        Returns its ids or counts if asked for.
        """
        extra: dict[str, Any] = dict(self.asset_extra or {})
        if self.asset_facts is not None:
            extra |= self.asset_facts()
        for asset in self.outlets:
            event = context["outlet_events"][asset]
            if isinstance(asset, AssetAlias):  # which release it means, only the run knows
                params = context["params"]
                address = str(CorpusAddress.of(str(params["corpus"]), params.get("fields") or ()))
                event.add(release_asset(corpus=address), extra=extra)
            else:
                event.extra.update(extra)
        if self.not_needed is not None:
            reasons = dict(self.not_needed(context, self.printed))
            for task_id, reason in reasons.items():
                self.log.info("skipped: %s: %s", task_id, reason)
            context["ti"].xcom_push(key=SKIPPED, value=reasons)
            # As `SkipMixin.skip`, which would end the task here, and Airflow would not store what it returns.
            # The scheduler reads this XCom before it starts a task directly after this one.
            if reasons:
                context["ti"].xcom_push(key=XCOM_SKIPMIXIN_KEY, value={XCOM_SKIPMIXIN_SKIPPED: list(reasons)})
                self.log.info("%d tasks are not needed", len(reasons))
        return self.printed if self.returns_result else None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The datasets of the stage that ended, well or not: Airflow's OpenLineage provider asks for them."""
        from toolformer_ops.airflow_tasks.lineage import (
            lineage_of,
        )  # and without the provider no module imports it

        return lineage_of(load_settings(), self.arguments)
