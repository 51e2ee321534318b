"""Score placebos: results of other calls in a call's place, in nats, into `placebo_losses` (docs/placebo.md).

The means of each call are its row of `call_information`. A separate stage after scoring, since the results
that it draws from are known when all calls are scored (`runs/placebo_pools.py`). `annotating.py` does its
work if it can, with the model that it has loaded. The room `annotation` draws and scores; this stage says for
which documents. It reads what scoring wrote and changes nothing of it. Does not decide what is kept, nor how
many calls are kept by chance: `sql/views` and `runs/placebo_rates.py` do.
"""

import dataclasses
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from toolformer_ops.annotation.placebo import (
    JudgedCall,
    PlaceboDraw,
    PlaceboLoss,
    compared_probability,
    information,
    placebo_reduction,
    score_placebos,
)
from toolformer_ops.annotation.scoring import ScoredCall
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import PlaceboChoices
from toolformer_ops.runs.micro_batches import MicroBatch, StageWork, work_off
from toolformer_ops.runs.models import RunModel
from toolformer_ops.runs.placebo_pools import choose_pool, load_pool
from toolformer_ops.runs.run_tools import (
    DocumentOutcome,
    RunTool,
    Shard,
    documents_after,
    open_run_tool,
    unfinished_documents,
)
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.database import TableRow

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

logger = logging.getLogger(__name__)

Loaded = list[tuple[Document, list[JudgedCall]]]
"""Documents with their calls."""


@dataclass
class PlaceboWork(StageWork[Loaded]):
    """Scoring placebos as micro-batches."""

    stage = "placebo"
    after = "score"
    counts_tokens = True
    asks_float32 = True
    draw: PlaceboDraw
    load_model: "Callable[[], LanguageModel]"

    @classmethod
    def of_pool(
        cls, connection: Connection, run: RunTool, shard: Shard, load_model: "Callable[[], LanguageModel]"
    ) -> "PlaceboWork":
        """The work that draws from the run's pool, which was made before."""
        draw = PlaceboDraw(load_pool(connection, run.recipe_of("placebo")))
        return cls(run=run, shard=shard, draw=draw, load_model=load_model)

    def load(self, connection: Connection, documents: Sequence[Document]) -> Loaded:
        """The documents' calls that have a result and losses."""
        rows = self.rows_of(connection, queries.placebos.calls, documents)
        scored_columns = {column.name for column in dataclasses.fields(ScoredCall)}
        loaded: Loaded = []
        for document in documents:
            calls: list[JudgedCall] = []
            for row in rows[document.document_id]:
                scored = {name: value for name, value in row._asdict().items() if name in scored_columns}
                calls.append(
                    JudgedCall(
                        call_id=row.call_id,
                        document_id=document.text_id,
                        token=row.position_token,
                        call=Call(self.run.tool, row.call_input),
                        scored=ScoredCall(**scored),
                    )
                )
            loaded.append((document, calls))
        return loaded

    def prepare(self, loaded: Loaded) -> None:
        """Load the model if a call has placebos."""
        if any(map(self._has_placebos, chain.from_iterable(calls for _, calls in loaded))):
            self.load_model()

    def give_up(self, loaded: Loaded, reason: str) -> MicroBatch:
        """One row for each call that has placebos, with the reason instead of losses."""

        def without_losses(call: JudgedCall) -> list[PlaceboLoss]:
            if not self._has_placebos(call):
                return []
            return [PlaceboLoss(1, None, is_sampled=self.draw.is_sampled(call.call_id), reason=reason)]

        return self._batch(loaded, [list(map(without_losses, calls)) for _, calls in loaded])

    def compute(self, loaded: Loaded) -> MicroBatch:
        """The placebos of the calls of all documents."""
        started = time.perf_counter()
        texts = [(document.text, calls) for document, calls in loaded]
        placebos = score_placebos(self.load_model, self.run.choices, texts, self.draw)
        return self._batch(loaded, placebos, time.perf_counter() - started)

    def _has_placebos(self, call: JudgedCall) -> bool:
        return self.draw.is_sampled(call.call_id) or self.draw.reaches(
            call.scored, self.run.choices.prune_below
        )

    def _batch(
        self, loaded: Loaded, scored: list[list[list[PlaceboLoss]]], seconds: float = 0.0
    ) -> MicroBatch:
        """The rows of placebos that were scored, by document and call.

        `seconds` is what all took together.
        """
        every_call = max(1, sum(len(calls) for _, calls in loaded))
        outcomes: list[DocumentOutcome] = []
        rows: list[TableRow] = []
        means: list[TableRow] = []
        for (document, calls), placebos_of_calls in zip(loaded, scored, strict=True):
            counts = Counter(calls=len(calls))
            written = len(rows)
            keys = {"placebo_recipe_id": self.recipe_id, "document_id": document.document_id}
            for call, placebos in zip(calls, placebos_of_calls, strict=True):
                counts["placebos"] += len(placebos)
                nats = information(placebos)
                if nats is not None:
                    means.append(
                        TableRow.of(
                            "call_information",
                            **keys,
                            call_id=call.call_id,
                            placebo_reduction=placebo_reduction(placebos),
                            information=nats,
                            placebos=sum(placebo.information is not None for placebo in placebos),
                            probability=compared_probability(placebos),
                        )
                    )
                has_placebos = bool(placebos) and placebos[0].source is not None
                counts["with_placebos" if has_placebos else "without_placebos"] += 1
                for placebo in placebos:
                    counts[placebo.reason or "scored"] += 1
                    rows.append(TableRow.of("placebo_losses", placebo, **keys, call_id=call.call_id))
            share = seconds * len(calls) / every_call  # the texts are computed together
            counts = Counter({name: count for name, count in counts.items() if count})
            outcomes.append(DocumentOutcome(document.document_id, len(rows) - written, counts, share))
        return MicroBatch(outcomes, [*rows, *means])


def placebo_stage(
    settings: Settings,
    run_id: str,
    tool_name: str,
    shard: str,
    model: RunModel | None = None,
    *,
    only_known_pool: bool = False,
    waits_for_others: bool = True,
) -> Counter[str]:
    """Score the placebos of one shard's calls of a tool.

    Returns the number of scored placebos and of each reason. Does nothing if no placebos are asked for, and
    with `only_known_pool` also if the run has no pool yet: that is drawn when all calls of the tool are
    scored. `waits_for_others` as in `work_off`.

    Raises:
        NoResultError: not all documents of the run are scored.
        ConfigurationError: the model is not that of the run's start.
    """
    run_model = model or RunModel(settings)
    run = run_model.run_tool(run_id, tool_name)
    placebo_choices = run.choices.part(PlaceboChoices)
    if run.placebo_recipe_id is None:
        if not placebo_choices.wants_placebos:
            logger.info("placebo: run %s asks for no placebos", run_id)
            return Counter()
        if only_known_pool:
            return Counter()
    with database.transaction(run_model.engine) as connection:
        if run.placebo_recipe_id is None:
            run = dataclasses.replace(run, placebo_recipe_id=choose_pool(connection, run, placebo_choices))
        work = PlaceboWork.of_pool(connection, run, Shard.parse(shard), functools.partial(run_model.of, run))
    return work_off(settings, run_model.engine, work, run_model.start_up, waits_for_others=waits_for_others)


def placebos_of_last_shard(
    settings: Settings, run_id: str, tool_name: str, shard: str, model: RunModel
) -> None:
    """Draw the run's pool and score the shard's placebos, if there is no pool yet and all calls of the tool are scored by now.

    So it does nothing in the process of a shard that others outlast.

    Raises:
        ConfigurationError: the model is not that of the run's start.
    """
    run = model.run_tool(run_id, tool_name)
    if run.placebo_recipe_id is not None or not run.choices.wants_placebos:
        return
    with database.transaction(model.engine) as connection:
        if any(unfinished_documents(connection, run)):
            return
    placebo_stage(settings, run_id, tool_name, shard, model)


def why_nothing_to_do(settings: Settings, run_id: str, tool_name: str, shard: str) -> str | None:
    """Return why the stage would find nothing to do for this shard, as a sentence for a log.

    It is None if it has work.

    Raises:
        DatabaseError: Postgres does not answer.
        UsageError: there is no such run, or it was started without this tool.
    """
    engine, run = open_run_tool(settings, run_id, tool_name)
    if run.choices.until_kept is not None and run.last_document_id is None:
        return None  # of all stages something may be left
    if run.placebo_recipe_id is None:
        return None if run.choices.wants_placebos else f"run {run_id} asks for no placebos"
    with database.transaction(engine) as connection:
        if documents_after(connection, run, Shard.parse(shard), "placebo", "score"):
            return None
    return f"no document of shard {shard} lacks its placebos"
