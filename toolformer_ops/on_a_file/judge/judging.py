"""Judge calls of other programs as a run judges its own: by how much their results reduce the loss.

1. The calls are read (`proposed_calls.py`). Each is a text of its own to annotate, with the call instead of
   samples.
2. They are annotated (`annotate/annotation.py`): a call without a result is executed, if its tool is known,
   and scored; with placebos the results of all calls of the file are their pool.

Each call gives a row, and so does each that is refused, with the reason. Samples nothing, and asks no other
model.
"""

import functools
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate.annotation import Annotation
from toolformer_ops.on_a_file.annotate.annotation_counts import AnnotationCounts, ToolCounts
from toolformer_ops.on_a_file.annotate.annotator import PRINTED, models_of
from toolformer_ops.on_a_file.annotate.pooled_placebos import PLACEBO_LOSSES, PlaceboCounts
from toolformer_ops.on_a_file.annotate.text_annotator import (
    OF_CANDIDATE,
    AnnotatedText,
    Row,
    TextAnnotator,
    TextToAnnotate,
    ToolAnnotator,
)
from toolformer_ops.on_a_file.judge.proposed_calls import (
    ProposalFields,
    ProposedCall,
    RefusedProposal,
    read_proposals,
)
from toolformer_ops.on_a_file.look.explanation import token_at
from toolformer_ops.records import Paragraph, content_uuid
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage.objects.parts import NoParts, Parts
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.tools.base import Tool, ToolOutput, ToolSpec
from toolformer_ops.tools.registry import get_tool

CALLS_TOGETHER = 16
"""Calls that are executed and scored together: a kill loses those of so many."""
JUDGED = (
    "id", "document_id", "call_id", "tool", "position_char", "position_token", "before", "call", "result",
    "message", "result_is_given", "after", "input_only_after", "reason", *PRINTED, "number_format",
    "reduction_bound", "loss_reduction", "gain", "keep_threshold", "kept", "not_kept",
)  # fmt: skip
"""The columns that are printed of a call."""
OF_PLACEBOS = ("information", "placebo_reduction", "placebos", "placebo_probability")
"""Those that a call has besides if it was compared with placebos."""


class ToolOfOthers(Tool):
    """A tool that is not known here, whose calls bring their results."""

    def __init__(self, name: str) -> None:
        self.spec = ToolSpec(name=name, purpose="", prompt_file="")
        self.prompt = ""


class Judging:
    """The judgement of a file's calls by a run's parameters."""

    def __init__(
        self,
        settings: Settings,
        path: Path | str,
        model_name: str,
        names: ProposalFields,
        values: dict[str, Any],
    ) -> None:
        """`values` are a run's parameters; raises `UsageError` if they are none."""
        self.parts: Parts = NoParts()
        self.settings = settings
        subject = {"corpus": str(path), "model": model_name, "until_kept": None}
        self.choices = RunChoices.parse({**values, **subject})
        self.counts = AnnotationCounts(noun="calls")
        self.refused: Counter[str] = Counter()
        self.likely_text: str | None = None
        """The field that holds the calls of the first record without a text under its name."""
        self._proposals = functools.partial(read_proposals, settings, path, names)
        self._models = models_of(settings, self.choices)
        self._tools: dict[str, ToolAnnotator] = {}

    def rows(self) -> Iterator[Row]:
        """A row for each call, in the order of the file.

        Raises as `find_files`, and as the model and the tools do.
        """
        # 1. Which calls can be judged, of which tools, and why others cannot.
        self.counts.begins("reading the calls")
        in_order: list[Row | bool] = []  # the row of a refused call, or whether the call brought its result
        for number, proposal in enumerate(self._proposals()):
            self.counts.texts += 1
            placed = self._placed(number, proposal)
            if isinstance(placed, RefusedProposal):
                self.refused[placed.reason] += 1
                self.likely_text = self.likely_text or placed.likely_text
                in_order.append(_without_call(placed.record_id, placed.reason))
            else:
                [tool] = placed.paragraphs
                self.counts.tools.setdefault(tool, ToolCounts()).items += 1
                in_order.append(isinstance(proposal, ProposedCall) and proposal.result is not None)
        # 2. Their losses, and what placebos say of them.
        annotation = Annotation(
            TextAnnotator(self.settings, self.choices, list(self._tools.values())),
            self._texts,
            self.counts,
            self.parts,
            texts_together=CALLS_TOGETHER,
            pool_calls=self.counts.texts,
            doing="judging",
        )
        texts = annotation.texts()
        compared: dict[str, list[Row]] = {name: [] for name in self._tools}
        for item in in_order:
            if not isinstance(item, bool):
                yield item
                continue
            text = next(texts)
            if self.choices.wants_placebos:
                compared[text.tool] += text.calls
            yield _printed(text, result_is_given=item)
        # 3. The rate, which counts the calls of equal texts together.
        for name, rows in compared.items():
            counts = self.counts.tools[name]
            counts.placebos = PlaceboCounts()
            counts.placebos.add(rows)
            if not counts.placebos.documents:
                counts.sample_share = None
        self.counts.ended()

    def _texts(self, only: ToolAnnotator | None) -> Iterator[TextToAnnotate]:
        """The texts with the calls that can be judged, of all tools or of one."""
        for number, proposal in enumerate(self._proposals()):
            if only is None or (isinstance(proposal, ProposedCall) and proposal.call.tool == only.name):
                placed = self._placed(number, proposal)
                if isinstance(placed, TextToAnnotate):
                    yield placed

    def _placed(
        self, number: int, proposal: ProposedCall | RefusedProposal
    ) -> TextToAnnotate | RefusedProposal:
        """The text of the call with this number in the file; a refusal if no token starts at its place."""
        if isinstance(proposal, RefusedProposal):
            return proposal
        call, at, text = proposal.call, proposal.at, proposal.document.text
        try:
            token = token_at(self._models.model().tokenize(text).starts, text, at)
        except UsageError:
            return RefusedProposal(proposal.record_id, "place_not_at_a_token")
        tool = self._tool(proposal).tool
        # 1. The result, if it is known.
        document = replace(proposal.document, document_id=_key_of(number, proposal))
        effective_input = tool.effective_input(call.input, tool.spec.as_read(document))
        answer: ToolOutput | None = None
        if proposal.result is not None:
            answer = ToolOutput.of(proposal.result)
        elif effective_input is None:
            answer = ToolOutput.none("document_cannot_answer")
        # 2. The rows that sampling and execution would write.
        input_key = document.document_id if answer else content_uuid(str(effective_input))
        text_id = str(document.text_id)
        columns = {
            "document_id": document.document_id,
            "call_id": content_uuid(text_id, "proposed", str(token), str(call)),
            "position_token": token,
            "position_char": at,
            "call_input": call.input,
            "call_text": str(call),
            "input_key": input_key,
            "effective_input": effective_input,
            "input_only_after": tool.input_only_after(call.input, text[:at], text[at:]),
        }
        rows = [TableRow("candidate_calls", {**dict.fromkeys(OF_CANDIDATE), **columns})]
        if answer is not None:
            rows.append(TableRow.of("call_results", answer, input_key=input_key))
        whole = Paragraph(document, end_char=len(text))
        return TextToAnnotate(proposal.record_id, document, {}, {tool.spec.name: [whole]}, rows)

    def _tool(self, proposal: ProposedCall) -> ToolAnnotator:
        """What judges the calls of a proposal's tool."""
        name = proposal.call.tool
        if name not in self._tools:
            tool = get_tool(name) if proposal.is_known else ToolOfOthers(name)
            self._tools[name] = ToolAnnotator(self.settings, tool, self.choices, self._models)
        return self._tools[name]


def _key_of(number: int, proposal: ProposedCall) -> uuid.UUID:
    """Names a call of the file, by its number and all that decides its row."""
    document = proposal.document
    read = (document.text, document.url or "", str(document.document_date or ""))
    result = [] if proposal.result is None else [proposal.result]
    return content_uuid(str(number), *read, str(proposal.at), str(proposal.call), *result)


def _printed(text: AnnotatedText, *, result_is_given: bool) -> Row:
    """The row of a text's call, or why the text was given up."""
    if not text.calls:
        return _without_call(text.name, str(text.why_nothing))
    [row] = text.calls
    row = {**row, "result_is_given": result_is_given}
    names = JUDGED if row.get(PLACEBO_LOSSES) is None else (*JUDGED, *OF_PLACEBOS)
    return {name: row[name] for name in names}


def _without_call(record_id: str, reason: str) -> Row:
    return {"id": record_id, "kept": False, "reason": reason, "not_kept": reason}
