"""Judge calls of other programs as a run judges its own: by how much their results reduce the loss.

1. The calls are read (`proposed_calls.py`).
2. A call without a result is executed, if its tool is known.
3. The losses are computed as `annotate` and `explain` compute them; with placebos the results of the file's
   calls are their pool. What is computed is put as parts, so that a command that was killed continues.

Each call gives a row, and so does each that is refused, with the reason. Samples nothing, and asks no other
model.
"""

import dataclasses
import functools
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolformer_ops.annotation.placebo import PlaceboDraw, score_placebos
from toolformer_ops.annotation.scoring import ExecutedCall, ExecutedText, own_text_of, score_texts
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate.annotation_counts import AnnotationCounts, ToolCounts
from toolformer_ops.on_a_file.annotate.annotator import (
    judged_call_of,
    models_of,
    scored_fields,
    with_verdict,
)
from toolformer_ops.on_a_file.annotate.pooled_placebos import PLACEBO_LOSSES, pool_of, with_placebos
from toolformer_ops.on_a_file.annotate.text_annotator import Row
from toolformer_ops.on_a_file.judge.proposed_calls import (
    ProposalFields,
    ProposedCall,
    RefusedProposal,
    read_proposals,
)
from toolformer_ops.on_a_file.look.explanation import token_at
from toolformer_ops.records import content_uuid
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.runs.recipes import id_of_content
from toolformer_ops.storage.objects.parts import NoParts, Parts
from toolformer_ops.tools.base import Tool, ToolOutput, ToolRunner, ToolSpec, run_tool
from toolformer_ops.tools.registry import get_tool, tool_names

CALLS_TOGETHER = 16
"""Calls that are executed and scored together: a kill loses those of so many."""
OF_OTHERS = ToolSpec(name="a tool of others", purpose="", prompt_file="")
"""The numbers of a tool that is not known here, whose calls bring their results."""


@dataclass(frozen=True)
class _PlacedProposal:
    """A proposed call whose place is a token of the model."""

    number: int
    """In the file, from 0."""
    proposal: ProposedCall
    token: int


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
        self.choices = RunChoices.parse({**values, "corpus": str(path), "model": model_name})
        self.counts = AnnotationCounts(noun="calls")
        self.refused: Counter[str] = Counter()
        self.likely_text: str | None = None
        """The field that holds the calls of the first record without a text under its name."""
        self._proposals = functools.partial(read_proposals, settings, path, names)
        self._model = models_of(settings, self.choices).model
        self._runners: dict[str, ToolRunner] = {}
        self._recipe_ids: dict[str, str] = {}

    def rows(self) -> Iterator[Row]:
        """A row for each call, in the order of the file.

        Raises as `find_files`, and as the model and the tools do.
        """
        self.counts.begins("reading the calls")
        for item in self._proposals():
            self.counts.texts += 1
            if isinstance(item, ProposedCall):
                self.counts.tools.setdefault(item.call.tool, ToolCounts()).items += 1
            else:
                self.likely_text = self.likely_text or item.likely_text
        self.counts.begins("loading the model")
        scored = self._scored()
        if not self.choices.wants_placebos:
            yield from scored
        else:
            rows = list(scored)
            self._judge_by_placebos(rows)
            for row in rows:
                yield {name: value for name, value in row.items() if name not in ("text", PLACEBO_LOSSES)}
        self.counts.ended()

    def _scored(self) -> Iterator[Row]:
        """The rows before placebos; with placebos each has its `text`, too."""
        numbered = enumerate(self._proposals())
        while batch := list(itertools.islice(numbered, CALLS_TOGETHER)):
            rows: dict[int, Row] = {}
            placed: list[_PlacedProposal] = []
            # 1. What is refused.
            for number, item in batch:
                if isinstance(item, RefusedProposal):
                    rows[number] = self._refusal(item.record_id, item.reason)
                    continue
                starts = self._model().tokenize(item.document.text).starts
                self.counts.begins("judging")
                try:
                    placed.append(
                        _PlacedProposal(number, item, token_at(starts, item.document.text, item.at))
                    )
                except UsageError:
                    self.counts.tools[item.call.tool].items -= 1
                    rows[number] = self._refusal(item.record_id, "place_not_at_a_token")
            # 2. The others, unless an earlier try has finished them.
            calls_of_tool: dict[str, list[_PlacedProposal]] = defaultdict(list)
            for call in placed:
                calls_of_tool[call.proposal.call.tool].append(call)
            for tool, calls in calls_of_tool.items():
                name = self._part_name("judged", self._recipe_id(tool), map(_content_of, calls))
                judged = self._stored_or(name, functools.partial(self._judged, tool, calls))
                for call, row in zip(calls, judged, strict=True):
                    rows[call.number] = with_verdict(row, self._keep_threshold(tool))
            # 3. In the order of the file.
            texts = {call.number: call.proposal.document.text for call in placed}
            for number, row in sorted(rows.items()):
                if number in texts:
                    self.counts.judged_call(row)
                yield (
                    {**row, "text": texts[number]} if number in texts and self.choices.wants_placebos else row
                )

    def _judged(self, tool_name: str, calls: Sequence[_PlacedProposal]) -> list[Row]:
        """The rows of a tool's calls, executed and scored together."""
        tool = get_tool(tool_name) if calls[0].proposal.is_known else None
        outputs = self._outputs(tool, calls)
        texts = []
        for call, output in zip(calls, outputs, strict=True):
            executed = ExecutedCall(
                token=call.token, call=call.proposal.call, results=output.results, reason=output.reason
            )
            document = call.proposal.document
            own_text = own_text_of(tool, document) if tool else None
            texts.append(ExecutedText(document.text, [executed], own_text))
        threshold = self._keep_threshold(tool_name)
        scored = score_texts(self._model, self.choices, threshold, texts)
        rows = []
        for call, output, [scored_call] in zip(calls, outputs, scored, strict=True):
            proposal = call.proposal
            text, at = proposal.document.text, proposal.at
            only_after = tool is not None and tool.input_only_after(proposal.call.input, text[:at], text[at:])
            document_id = str(proposal.document.document_id)
            row = {
                "id": proposal.record_id,
                "document_id": document_id,
                "call_id": str(content_uuid(document_id, "proposed", str(call.token), str(proposal.call))),
                "tool": proposal.call.tool,
                "position_char": at,
                "position_token": call.token,
                "before": text[max(0, at - 60) : at],
                "call": str(proposal.call),
                "result": scored_call.result,
                "message": output.message,
                "result_is_given": proposal.result is not None,
                "after": text[at : at + 60],
                "input_only_after": only_after,
                **scored_fields(scored_call),
            }
            rows.append(with_verdict(row, threshold))
        return rows

    def _outputs(self, tool: Tool | None, calls: Sequence[_PlacedProposal]) -> list[ToolOutput]:
        """The result of each call: the result that is given, else what the tool answers, each distinct input once."""
        inputs: dict[int, str] = {}
        outputs: dict[int, ToolOutput] = {}
        for call in calls:
            proposal = call.proposal
            if proposal.result is not None or tool is None:
                outputs[call.number] = ToolOutput.of(str(proposal.result))
                continue
            effective_input = tool.effective_input(proposal.call.input, tool.spec.as_read(proposal.document))
            if effective_input is None:
                outputs[call.number] = ToolOutput.none("document_cannot_answer")
            else:
                inputs[call.number] = effective_input
        if inputs and tool is not None:
            if tool.spec.name not in self._runners:
                self._runners[tool.spec.name] = tool.open(self.settings, self._model)
            runner = self._runners[tool.spec.name]
            answers = run_tool(runner, list(inputs.values()), self.settings.tool_time_limit_seconds)
            outputs |= dict(zip(inputs, answers, strict=True))
        return [outputs[call.number] for call in calls]

    def _keep_threshold(self, tool_name: str) -> float:
        spec = self._spec(tool_name)
        return self.choices.keep_thresholds.get(tool_name, self.choices.usual_threshold(spec))

    def _spec(self, tool_name: str) -> ToolSpec:
        return get_tool(tool_name).spec if tool_name in tool_names() else OF_OTHERS

    def _recipe_id(self, tool_name: str) -> str:
        """What decides a call's losses, beside the call: the model, how it scores, and what answers."""
        if tool_name not in self._recipe_ids:
            self._recipe_ids[tool_name] = self._new_recipe_id(tool_name)
        return self._recipe_ids[tool_name]

    def _new_recipe_id(self, tool_name: str) -> str:
        identity = self._model().identity
        spec = self._spec(tool_name)
        answers = get_tool(tool_name).version(self.settings, identity) if spec is not OF_OTHERS else "given"
        scoring = self.choices.deciding_losses(
            dataclasses.replace(spec, keep_threshold=self._keep_threshold(tool_name)), self.settings.dtype
        )
        return id_of_content({"model": identity, "dtype": self.settings.dtype, "answers": answers, **scoring})

    def _part_name(self, folder: str, recipe_id: str, contents: Iterable[str]) -> str:
        return f"{folder}/{recipe_id}-{content_uuid(*contents).hex}.json"

    def _stored_or(self, name: str, compute: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a part; they are computed and put if it is not there."""
        content = self.parts.get(name)
        if content is None:
            content = json.dumps(compute()).encode("ascii")
            self.parts.put(name, content)
        rows: list[Row] = json.loads(content)
        return rows

    def _refusal(self, record_id: str, reason: str) -> Row:
        self.refused[reason] += 1
        return {"id": record_id, "kept": False, "reason": reason, "not_kept": reason}

    def _judge_by_placebos(self, rows: Sequence[Row]) -> None:
        """Score placebos of the calls of each tool; what the keep rule then keeps is in the rows."""
        for name, counts in self.counts.tools.items():
            own = [row for row in rows if row.get("tool") == name]
            scored = [row for row in own if judged_call_of(row).has_losses]
            if scored:
                self.counts.begins(f"scoring placebos of {name}")
                placebo_choices = self.choices.part(PlaceboChoices)
                pool = pool_of(map(judged_call_of, scored), placebo_choices)
                recipe = pool.recipe(self._recipe_id(name), name, placebo_choices)
                counts.sample_share, draw = pool.sample_share, PlaceboDraw(pool)
                for first in range(0, len(scored), CALLS_TOGETHER):
                    batch = scored[first : first + CALLS_TOGETHER]
                    self._judge_batch(name, batch, draw, recipe.recipe_id)
                counts.placebos.add(own)
            self.counts.judge_again(name, own)

    def _judge_batch(self, tool: str, rows: Sequence[Row], draw: PlaceboDraw, recipe_id: str) -> None:
        """Score the placebos of some calls, unless an earlier try has done it."""
        threshold = self._keep_threshold(tool)

        def judged() -> list[Row]:
            calls = [(row["text"], [judged_call_of(row)]) for row in rows]
            scored = score_placebos(self._model, self.choices, calls, draw)
            return [
                with_placebos(row, placebos, threshold) for row, [placebos] in zip(rows, scored, strict=True)
            ]

        name = self._part_name("placebos", recipe_id, (row["call_id"] for row in rows))
        for row, stored in zip(rows, self._stored_or(name, judged), strict=True):
            row.update(with_verdict({**stored, "id": row["id"]}, threshold))


def _content_of(call: _PlacedProposal) -> str:
    """What decides the row of a call, beside its recipe."""
    proposal = call.proposal
    parts = (
        proposal.record_id,
        proposal.document.text,
        proposal.document.url or "",
        str(proposal.document.document_date or ""),
        str(proposal.at),
        str(proposal.call),
    )
    return str(content_uuid(*parts, *([] if proposal.result is None else [proposal.result])))
