"""Several tools and one model, open: what each tool finds in some texts.

A tool samples, executes, scores and judges by placebos as the stages do, with their own micro-batches, from
which the rows of a file are made. The rows of a text depend on the text and the choices alone, not on what is
annotated with it. Placebos are drawn from a pool that is given (`call_table.py`), or from the calls of the
first texts (`annotation.py`).
"""

import functools
import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import PurePosixPath
from typing import Any

from toolformer_ops.annotation.candidates import annotation_prompt
from toolformer_ops.annotation.filtering import filter_document, kept_paragraphs
from toolformer_ops.annotation.placebo import JudgedCall, PlaceboDraw, PlaceboLoss
from toolformer_ops.annotation.scoring import ExecutedCall
from toolformer_ops.annotation.tool_proposals import OpenProposer
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.errors import DeviceMemoryError
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, device_kind
from toolformer_ops.on_a_file.annotate.annotator import (
    Models,
    judged_call_of,
    models_of,
    scored_fields,
    with_verdict,
)
from toolformer_ops.on_a_file.annotate.file_tries import FileTries
from toolformer_ops.on_a_file.annotate.pooled_placebos import with_placebos
from toolformer_ops.on_a_file.annotate.shown_calls import FailedCall, most_gain
from toolformer_ops.records import Document, Paragraph
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.claims import OUT_OF_MEMORY, PROCESS_KILLED, plan_batches
from toolformer_ops.runs.micro_batches import MicroBatch
from toolformer_ops.runs.models import with_sample_end
from toolformer_ops.runs.recipes import (
    model_proposes,
    proposer_identity,
    require_proposing_tools,
    tool_proposes,
    tool_recipes,
)
from toolformer_ops.runs.run_tools import NO_LIMIT, DocumentOutcome, RunTool, Shard
from toolformer_ops.stages.execution import CallInputs, ExecuteWork
from toolformer_ops.stages.placebo import PlaceboWork
from toolformer_ops.stages.sampling import SampleWork, SmallestKeys
from toolformer_ops.stages.scoring import CallToScore, ScoreWork, scored_of
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.tools.base import FilterDecision, Tool, ToolRunner
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.writing_systems import tokens_before

logger = logging.getLogger(__name__)

Row = dict[str, Any]
"""A call, as `annotate` prints it, with what a run stores of it besides (`call_table.py`)."""
Values = Mapping[str, Any]
"""A row of a table, by column."""
OF_CANDIDATE = (
    "position_char", "position_token", "position_probability", "paragraph", "effective_input", "sample_count",
    "proposed_by", "input_only_after", "parent_call",
)  # fmt: skip
"""Columns of `candidate_calls` that a row has under the same names."""
OF_ANSWER = ("results", "message")
"""Columns of `call_results` that a row has; its reason is that of the losses if there are no results."""
OF_LOSSES = ("result", "result_rank", "token_log_probabilities", "scored_tokens")
"""Columns of `call_losses` that a row has beside those that are printed."""
OF_POSITION = ("paragraph", "position_token", "position_char", "position_probability", "gain_bound")
"""The columns of `pruned_positions` beside its recipe and document."""
OF_LOST_SAMPLE = ("sample_key", "paragraph", "position_char", "reason", "sample_text", "sample_count")
"""The columns of `lost_samples` beside its recipe and document."""


@dataclass(frozen=True)
class TextToAnnotate:
    """A text with what each tool is asked about."""

    name: str
    """The name of its record."""
    document: Document
    """Its id is that of its record, since two records may share a text."""
    decisions: dict[str, list[FilterDecision]]
    """By tool, what its filter says."""
    paragraphs: Mapping[str, list[Paragraph]]
    """By tool, what its filter keeps; of a tool that is not asked about the text nothing, or no entry."""
    call_rows: Sequence[TableRow] | None = None
    """The rows of its calls and of their known results, if these are judged; None: calls are sampled."""

    def asks(self, tool: str) -> bool:
        """Whether the tool is asked about the text."""
        return bool(self.paragraphs.get(tool))


@dataclass(frozen=True, kw_only=True)
class AnnotatedText:
    """What one tool has found in a text."""

    name: str
    """The name of its record."""
    tool: str
    document: Document
    calls: list[Row]
    """Its distinct calls, in the order of the text."""
    counts: dict[str, Counter[str]]
    """By stage, as the ledger counts."""
    pruned: list[Values]
    """Positions at which no call can be kept, by the columns `OF_POSITION`."""
    lost: list[Values]
    """Samples that are no call, by the columns `OF_LOST_SAMPLE`."""
    seconds: dict[str, float]
    """By stage; a text's share where several are computed together."""

    def named(self, name: str) -> "AnnotatedText":
        """A copy under the name of another record, whose rows may be changed."""
        calls = [{**call, "id": name} for call in self.calls]
        return replace(self, name=name, calls=calls, counts=dict(self.counts))

    @property
    def rows(self) -> list[Row]:
        """Its calls that have a result."""
        return [call for call in self.calls if call["result"] is not None]

    @property
    def judged_calls(self) -> list[JudgedCall]:
        """Its calls that have losses, or those that prove that they save too little."""
        return [call for call in map(judged_call_of, self.calls) if call.has_losses]

    @property
    def without_result(self) -> Counter[FailedCall]:
        """Its calls that get no result: the tool gave none, or what it gave is passed over."""
        failed = (call for call in self.calls if call["result"] is None)
        return Counter(FailedCall(call["call"], call["reason"], call["message"]) for call in failed)

    @property
    def is_kept(self) -> bool:
        """Whether a call of it is kept."""
        return any(row["kept"] for row in self.rows)

    @property
    def why_nothing(self) -> str | None:
        """Why no call of it is kept, by the call or sample that came furthest (`runs/reasons.py`).

        It is None if one is kept.
        """
        if self.is_kept:
            return None
        if self.rows:
            best = max(self.rows, key=most_gain)
            return str(best["not_kept"])
        failures = Counter(call["reason"] for call in self.calls)
        counted = self.counts["sample"]
        for reason in (PROCESS_KILLED, OUT_OF_MEMORY):
            if counted[reason]:
                return reason
        samples = Counter(
            {reason: n for reason, n in counted.items() if reason.startswith(("sample_", "proposal_"))}
        )
        for reasons in (failures, samples):
            if reasons:
                return str(reasons.most_common(1)[0][0])
        return "positions_pruned_below" if counted["positions"] else "texts_without_position"


@dataclass
class ToolAnnotator:
    """The stages of one tool, on texts that no database knows."""

    settings: Settings
    tool: Tool
    choices: RunChoices
    models: Models
    has_done: bool = False
    """Whether a text has been annotated here."""

    @property
    def name(self) -> str:
        """The tool's."""
        return self.tool.spec.name

    @property
    def keep_threshold(self) -> float:
        """From what gain on its calls are kept."""
        return self.choices.keep_threshold(self.tool.spec)

    @property
    def recipe_id(self) -> str:
        """The recipe of the losses of the tool's calls."""
        return self.run.scoring_recipe_id

    @functools.cached_property
    def run(self) -> RunTool:
        """The tool as a run of these choices has it, with the recipes that model, tool and choices decide."""
        identity = self.models.model().identity
        version = self.tool.version(self.settings, identity)
        filtering, sampling, execution, scoring = tool_recipes(
            spec=self.tool.spec,
            prompt_text=self.tool.prompt,
            tool_version=version,
            model_identity=identity,
            dtype=self.settings.dtype,
            choices=self.choices,
            chained_release=PurePosixPath(self.choices.corpus).name if self.choices.chains else None,
            proposer_identity=proposer_identity(self.settings, self.choices, self.tool),
        )
        return RunTool(
            run_id="",
            tool=self.name,
            corpus_id="",
            corpus_version=1,
            ordinal_limit=NO_LIMIT,
            choices=self.choices,
            model_identity=identity,
            tool_version=version,
            keep_threshold=self.keep_threshold,
            reads_record=self.tool.spec.reads_record,
            filter_recipe_id=filtering.recipe_id,
            sampling_recipe_id=sampling.recipe_id,
            execution_recipe_id=execution.recipe_id,
            scoring_recipe_id=scoring.recipe_id,
        )

    @functools.cached_property
    def runner(self) -> ToolRunner:
        """The tool, open."""
        return self.tool.open(self.settings, self.models.model)

    @functools.cached_property
    def proposer(self) -> OpenProposer:
        """The tool as it proposes calls, open."""
        return OpenProposer(self.tool.open_proposer(self.settings), self.models.model().tokenize)

    def open(self, text: str) -> None:
        """Load what is loaded once a process, and read the prompt once, so that each text takes as long."""
        model = self.models.model()
        if model_proposes(self.choices, self.tool):
            model.find_positions(annotation_prompt(self.tool), [text], at_most=1, threshold=0.0)
        self.runner  # noqa: B018 - opened here

    def close(self) -> None:
        """End the process or connection of an open tool; it is opened anew when it is asked again."""
        close = getattr(self.__dict__.pop("runner", None), "close", None)
        if close is not None:
            close()

    def annotated(self, texts: Sequence[TextToAnnotate]) -> list[AnnotatedText]:
        """What the tool finds in each text, in order, before placebos.

        All texts are computed together; if memory is short, the first half and then the second, and so on. A
        text that alone does not fit is given up, if another one did.
        """
        try:
            annotated = self._annotated(texts)
        except (DeviceMemoryError, MemoryError):
            if len(texts) == 1 and not self.has_done:
                raise
        else:
            self.has_done = True
            return annotated
        if len(texts) == 1:
            return self.given_up(texts, OUT_OF_MEMORY)
        half = len(texts) // 2
        try:
            return [*self.annotated(texts[:half]), *self.annotated(texts[half:])]
        except (DeviceMemoryError, MemoryError):
            # Nothing is done yet. If the second half can be, a text of the first is to blame.
            second_half = self.annotated(texts[half:])
        return [*self.annotated(texts[:half]), *second_half]

    def given_up(self, texts: Sequence[TextToAnnotate], reason: str) -> list[AnnotatedText]:
        """The texts without a call, and with the reason.

        Raises:
            DeviceMemoryError: this process has done no other, so that no text is to blame.
        """
        if not self.has_done:
            raise DeviceMemoryError(
                f"{self.name}: expected memory for a text, found too little for {texts[0].name} alone ({reason}), "
                "and no other was done. Give the process more memory, or take TOOLFORMER_DTYPE=bfloat16 or a "
                "smaller model."
            )
        logger.warning("%s: %s is given up (%s)", self.name, texts[0].name, reason)
        return self._annotated(texts, reason)

    def _annotated(self, texts: Sequence[TextToAnnotate], given_up: str | None = None) -> list[AnnotatedText]:
        if not texts:
            return []
        run, shard = self.run, Shard()
        # 1. Sampling.
        sampled = self._sampled(texts, given_up)
        candidates = _rows_of(sampled, "candidate_calls")
        answers = _answers_of(sampled)
        # 2. Execution, of each distinct input once.
        execution = ExecuteWork(
            run=run,
            shard=shard,
            runner=lambda: self.runner,
            time_limit_seconds=self.settings.tool_time_limit_seconds,
        )
        reasons = {key: answer["reason"] for key, answer in answers.items()}
        inputs = CallInputs(calls={}, inputs={}, answered=reasons)
        for text in texts:
            own = candidates[text.document.document_id]
            inputs.calls[text.document.document_id] = [call["input_key"] for call in own]
            inputs.inputs.update({call["input_key"]: call["effective_input"] for call in own})
        executed = execution.compute(inputs)
        for outcome in executed.outcomes:
            # Which text of a batch asked an input first says nothing of the text.
            outcome.counts.update(
                executed=outcome.counts["from_cache"], from_cache=-outcome.counts["from_cache"]
            )
        answers |= _answers_of(executed)
        # 3. Scoring.
        scoring = ScoreWork(run=run, shard=shard, tool=self.tool, load_model=self.models.model)
        loaded = []
        for text in texts:
            own = candidates[text.document.document_id]
            loaded.append((text.document, [self._call_to_score(call, answers) for call in own]))
        scored = scoring.compute(loaded)
        losses = _rows_of(scored, "call_losses")
        # 4. The rows of each text.
        outcomes = zip(sampled.outcomes, executed.outcomes, scored.outcomes, strict=True)
        pruned, lost = _rows_of(sampled, "pruned_positions"), _rows_of(sampled, "lost_samples")
        annotated = []
        for text, stage_outcomes in zip(texts, outcomes, strict=True):
            key = text.document.document_id
            calls = []
            for call, loss in zip(candidates[key], losses[key], strict=True):
                calls.append(self._row(text, call, answers[call["input_key"]], loss))
            by_stage = dict(zip(("sample", "execute", "score"), stage_outcomes, strict=True))
            annotated.append(
                AnnotatedText(
                    name=text.name,
                    tool=self.name,
                    document=text.document,
                    calls=calls,
                    counts={stage: outcome.counts for stage, outcome in by_stage.items()},
                    pruned=[_columns(row, OF_POSITION) for row in pruned[key]],
                    lost=[_columns(row, OF_LOST_SAMPLE) for row in lost[key]],
                    seconds={stage: outcome.seconds for stage, outcome in by_stage.items()},
                )
            )
        return annotated

    def _sampled(self, texts: Sequence[TextToAnnotate], given_up: str | None) -> MicroBatch:
        """The calls of the texts: those that are judged, or else sampled and proposed."""
        paragraphs = {text.document.document_id: text.paragraphs[self.name] for text in texts}
        call_rows: list[TableRow] = []
        for text in texts:
            call_rows += text.call_rows or ()
        if call_rows and not given_up:
            return MicroBatch(list(map(DocumentOutcome, paragraphs)), call_rows)
        sampling = SampleWork(
            run=self.run,
            shard=Shard(),
            tool=self.tool,
            load_model=self.models.model,
            endpoint=self.models.endpoint,
            load_proposer=(lambda: self.proposer) if tool_proposes(self.choices, self.tool) else None,
            smallest_keys=SmallestKeys(at_most=ALL),
        )
        return sampling.give_up(paragraphs, given_up) if given_up else sampling.compute(paragraphs)

    def _call_to_score(self, call: Values, answers: Mapping[Any, Values]) -> CallToScore:
        answer = answers[call["input_key"]]
        executed = ExecutedCall(
            token=call["position_token"],
            call=Call(self.name, call["call_input"]),
            results=answer["results"],
            reason=answer["reason"],
            input_only_after=call["input_only_after"],
        )
        return CallToScore(call["call_id"], executed)

    def _row(self, text: TextToAnnotate, call: Values, answer: Values, losses: Values) -> Row:
        """A call; offsets are those of the document."""
        written, position = text.document.text, call["position_char"]
        row = {
            "id": text.name,
            "document_id": str(text.document.text_id),
            "call_id": str(call["call_id"]),
            "tool": self.name,
            "before": written[max(0, position - 60) : position],
            "call": call["call_text"],
            "after": written[position : position + 60],
            **_columns(call, OF_CANDIDATE),
            **_columns(answer, OF_ANSWER),
            **_columns(losses, OF_LOSSES),
            **scored_fields(scored_of(losses)),
        }
        return with_verdict(row, self.keep_threshold)

    def judge(self, texts: Sequence[AnnotatedText], draw: PlaceboDraw, recipe_id: str) -> None:
        """Score the placebos of the texts' calls together; what they say is in the rows then."""
        work = PlaceboWork(
            run=replace(self.run, placebo_recipe_id=recipe_id),
            shard=Shard(),
            draw=draw,
            load_model=self.models.model,
        )
        batch = work.compute([(text.document, text.judged_calls) for text in texts])
        placebos_by_document = _rows_of(batch, "placebo_losses")
        names = [field.name for field in fields(PlaceboLoss)]
        for text, outcome in zip(texts, batch.outcomes, strict=True):
            text.counts["placebo"], text.seconds["placebo"] = outcome.counts, outcome.seconds
            placebos: dict[str, list[PlaceboLoss]] = defaultdict(list)
            for values in placebos_by_document[text.document.document_id]:
                loss = PlaceboLoss(**{name: values[name] for name in names})
                placebos[str(values["call_id"])].append(loss)
            for row in text.calls:
                if judged_call_of(row).has_losses:
                    row.update(with_placebos(row, placebos[row["call_id"]], self.keep_threshold))


ALL = 10**9
"""The most lost samples that a batch keeps; what is stored is chosen with the part (`call_parts.py`)."""


def _columns(values: Values, names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names}


def _answers_of(batch: MicroBatch) -> dict[Any, Values]:
    """The results in a micro-batch, by the key of their input."""
    return {row.values["input_key"]: row.values for row in batch.rows if row.table == "call_results"}


def _rows_of(batch: MicroBatch, table: str) -> Mapping[Any, list[Values]]:
    """The rows of a table in a micro-batch, by document."""
    rows: dict[Any, list[Values]] = defaultdict(list)
    for row in batch.rows:
        if row.table == table:
            rows[row.values["document_id"]].append(row.values)
    return rows


@dataclass(frozen=True)
class TextAnnotator:
    """The tools of a run's choices with the model that they share, which is loaded when it is first asked for."""

    settings: Settings
    choices: RunChoices
    tools: Sequence[ToolAnnotator]

    @classmethod
    def of(cls, settings: Settings, choices: RunChoices, models: Models | None = None) -> "TextAnnotator":
        """The tools and the model that the choices name; `models` are theirs if they are loaded already.

        Raises as `models_of` and `require_proposing_tools`.
        """
        require_proposing_tools(choices)
        choices = with_sample_end(settings, choices)
        models = models or models_of(settings, choices)
        tools = [
            ToolAnnotator(settings=settings, tool=get_tool(name), choices=choices, models=models)
            for name in choices.tools
        ]
        return cls(settings, choices, tools)

    def require_tools(self) -> None:
        """Raise if an index or a model of a tool is not there: before the language model is loaded."""
        for annotator in self.tools:
            annotator.tool.version(self.settings, "")

    def to_annotate(self, name: str, document: Document, only: ToolAnnotator | None = None) -> TextToAnnotate:
        """The document with what each tool is asked about, or one alone; `name` is that of its record."""
        document = replace(document, document_id=document.record_id)
        decisions: dict[str, list[FilterDecision]] = {}
        for annotator in [only] if only else self.tools:
            decisions[annotator.name] = filter_document(
                annotator.tool, document, self.choices, chains=self.choices.chains
            )
        paragraphs = {tool: kept_paragraphs(document, parts) for tool, parts in decisions.items()}
        return TextToAnnotate(name, document, decisions, paragraphs)

    def annotated(
        self, annotator: ToolAnnotator, texts: Sequence[TextToAnnotate], tries: FileTries
    ) -> list[AnnotatedText]:
        """What a tool finds in each text, in order, before placebos, in micro-batches as those of a run.

        A text that has killed its process again and again is given up.
        """
        settings = self.settings
        most_tokens = (
            settings.micro_batch_tokens or BATCH_SIZES[device_kind(settings.device)].micro_batch_tokens
        )
        by_id = {text.document.document_id: text for text in texts}
        tokens = {key: round(float(tokens_before(text.document.text)[-1])) for key, text in by_id.items()}
        annotated: dict[uuid.UUID, AnnotatedText] = {}
        for planned in plan_batches(
            list(by_id), tries.left, settings.micro_batch_documents, tokens, most_tokens
        ):
            batch = [by_id[key] for key in planned.document_ids]
            if planned.is_given_up:
                done = annotator.given_up(batch, PROCESS_KILLED)
            else:
                with tries.begun(planned.document_ids):
                    done = annotator.annotated(batch)
            annotated.update(zip(planned.document_ids, done, strict=True))
        return [annotated[key] for key in by_id]

    def close(self) -> None:
        """Close the tools; the model goes with this object."""
        for annotator in self.tools:
            annotator.close()
