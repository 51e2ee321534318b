"""Run the tool on what the model asked, into `call_results` (Toolformer, section 2, "Executing API Calls").

Results are kept by (tool, version, input): one row serves all documents that ask the same, in this run and in
later ones. An input without a result has a row with the reason. Which of a tool's ranked results a call gets
is decided by `scoring`.
"""

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.runs.feeding import UNWRITTEN_BATCHES
from toolformer_ops.runs.micro_batches import MicroBatch, StageWork, work_off
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.run_tools import DocumentOutcome, Shard
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.storage.postgres.in_use import keep_results
from toolformer_ops.tools.base import ToolOutput, ToolRunner, run_tool

MOST_DOCUMENTS = 128
"""The most documents of a micro-batch, which otherwise has eight times the documents of other stages."""


@dataclass(frozen=True)
class CallInputs:
    """The inputs of a micro-batch's calls."""

    calls: dict[uuid.UUID, list[uuid.UUID]]
    """Input keys of each document's calls, one a call."""
    inputs: dict[uuid.UUID, str]
    """The distinct inputs, by key."""
    answered: dict[uuid.UUID, str | None]
    """Keys that have a row already, with the reason if it holds no result."""


@dataclass
class ExecuteWork(StageWork[CallInputs]):
    """Execution as micro-batches."""

    stage = "execute"
    after = "sample"
    runner: Callable[[], ToolRunner]
    time_limit_seconds: float
    unwritten_answers: deque[dict[uuid.UUID, str | None]] = field(
        default_factory=lambda: deque(maxlen=UNWRITTEN_BATCHES)
    )
    """The answers of the last micro-batches, which may not have been in Postgres when the next one was read.

    A micro-batch cannot leave when it is committed: the next one was read before.
    """

    def load(self, connection: Connection, documents: Sequence[Document]) -> CallInputs:
        """The documents' calls, and which of their inputs are answered already."""
        calls: dict[uuid.UUID, list[uuid.UUID]] = {}
        inputs: dict[uuid.UUID, str] = {}
        for document_id, rows in self.rows_of(connection, queries.undone.calls, documents).items():
            calls[document_id] = [row.input_key for row in rows]
            inputs.update((row.input_key, row.effective_input) for row in rows)
        answers = database.fetch_all(
            connection, queries.undone.known_results, **self.run.ids, input_keys=list(inputs)
        )
        return CallInputs(calls=calls, inputs=inputs, answered={row.input_key: row.reason for row in answers})

    def prepare(self, loaded: CallInputs) -> None:
        """Open the tool if an input has no row."""
        if self._missing(loaded):
            self.runner()

    def give_up(self, loaded: CallInputs, reason: str) -> MicroBatch:
        """The reason as the answer to every input that has no row yet."""
        missing = self._missing(loaded)
        return self._answered(loaded, missing, [ToolOutput.none(reason)] * len(missing), 0.0)

    def compute(self, loaded: CallInputs) -> MicroBatch:
        """Run the tool on the inputs that have no row yet, all of them at once."""
        missing = self._missing(loaded)
        started = time.perf_counter()
        outputs: list[ToolOutput] = []
        if missing:
            outputs = run_tool(
                self.runner(), [loaded.inputs[key] for key in missing], self.time_limit_seconds
            )
        return self._answered(
            loaded, missing, outputs, (time.perf_counter() - started) / max(1, len(missing))
        )

    def _answers(self, loaded: CallInputs) -> dict[uuid.UUID, str | None]:
        """The inputs that have been run, by key, each with the reason if it has no result."""
        answers = dict(loaded.answered)
        for batch in self.unwritten_answers:
            answers |= batch
        return answers

    def _missing(self, loaded: CallInputs) -> list[uuid.UUID]:
        answers = self._answers(loaded)
        return [key for key in loaded.inputs if key not in answers]

    def _answered(
        self, loaded: CallInputs, missing: Sequence[uuid.UUID], outputs: Sequence[ToolOutput], seconds: float
    ) -> MicroBatch:
        """The rows of the fresh outputs, and the counts of the documents that asked.

        `seconds` is an input's share.
        """
        rows: list[TableRow] = []
        fresh: dict[uuid.UUID, str | None] = {}
        for key, output in zip(missing, outputs, strict=True):
            fresh[key] = output.reason
            row = TableRow.of(
                "call_results",
                output,
                tool=self.run.tool,
                tool_version=self.run.tool_version,
                input_key=key,
                input=loaded.inputs[key],
                results=list(output.results),
                message=output.message,
                seconds=seconds,
            )
            rows.append(row)
        reasons = self._answers(loaded) | fresh
        self.unwritten_answers.append(fresh)
        # Counts by document; a fresh result is counted with the first document that asked for it.
        outcomes: list[DocumentOutcome] = []
        unclaimed = set(fresh)
        for document_id, keys in loaded.calls.items():
            claimed = unclaimed & set(keys)
            unclaimed -= claimed
            counts: Counter[str] = Counter(reasons[key] or "with_result" for key in keys)
            counts["calls"], counts["inputs"] = len(keys), len(set(keys))
            counts["executed"], counts["from_cache"] = len(claimed), len(set(keys)) - len(claimed)
            outcomes.append(
                DocumentOutcome(
                    document_id, rows_written=len(claimed), counts=counts, seconds=seconds * len(claimed)
                )
            )
        return MicroBatch(outcomes, rows, counts_on=frozenset(loaded.inputs.keys() - fresh.keys()))

    def is_current(self, connection: Connection, batch: MicroBatch) -> bool:
        """Whether the results that were there before still are; none is deleted until the transaction ends."""
        keep_results(connection)
        written = {row.values["input_key"] for row in batch.rows if row.table == "call_results"}
        return not database.fetch_all(
            connection,
            queries.undone.lacks_results,
            **self.run.ids,
            input_keys=list(batch.counts_on - written),
        )

    def begin_again(self) -> None:
        """Forget answers of micro-batches that were dropped."""
        self.unwritten_answers.clear()


def execute_stage(
    settings: Settings,
    run_id: str,
    tool_name: str,
    shard: str,
    model: RunModel | None = None,
    *,
    waits_for_others: bool = True,
) -> Counter[str]:
    """Run the tool on what is undone of one shard's calls; returns the number of results and of each reason.

    `model` is the run's, if another stage of this process uses it, too; it keeps the tool open.
    `waits_for_others` as in `work_off`.

    Raises as `RunModel.tool_of`.
    """
    run_model = model or RunModel(settings)
    run = run_model.run_tool(run_id, tool_name)
    work = ExecuteWork(
        run=run,
        shard=Shard.parse(shard),
        runner=run_model.tool_of(run),
        time_limit_seconds=settings.tool_time_limit_seconds,
    )
    return work_off(
        settings,
        run_model.engine,
        work,
        run_model.start_up,
        most_documents=min(settings.micro_batch_documents * 8, MOST_DOCUMENTS),
        waits_for_others=waits_for_others,
    )
