"""Placebos of the calls of a file, whose results are the pool: what the stage of placebos does, without a database."""

import dataclasses
import functools
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolformer_ops.annotation.placebo import (
    JudgedCall,
    PlaceboDraw,
    PlaceboLoss,
    compared_probability,
    gain_of,
    information,
    placebo_reduction,
    score_placebos,
)
from toolformer_ops.annotation.scoring import scored_call_of
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.on_a_file.annotate.annotator import ToolAnnotator, judged_call_of
from toolformer_ops.on_a_file.annotate.partial_file import PartialFile
from toolformer_ops.on_a_file.annotate.text_annotator import AnnotatedText
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.runs.placebo_pools import Pool
from toolformer_ops.runs.placebo_rates import CountedDocuments, Rate, calls_represented, rate_of
from toolformer_ops.runs.recipes import placebo_recipe

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

TEXTS_TOGETHER = 16
"""Texts whose placebos are scored together: a kill loses those of so many."""
NO_OTHER_RESULT = "no_other_result"
LIKE_A_PLACEBO = "like_a_placebo"
"""Why a call that gains enough before its placebo is not kept (`runs/reasons.py`)."""


@dataclass(frozen=True)
class TextOfCalls:
    """The calls of one tool in a text, as `call_line` writes them."""

    text_id: str
    text: str
    lines: Sequence[dict[str, Any]]
    """Calls with losses, or with those that prove that they save too little."""

    @classmethod
    def of(cls, text: AnnotatedText) -> "TextOfCalls":
        """The calls of an annotated text that have losses."""
        scored = [row for row in text.rows if row["reason"] in (None, "pruned_below")]
        return cls(str(text.document.document_id), text.document.text, scored)

    @functools.cached_property
    def calls(self) -> list[JudgedCall]:
        """The calls of the lines, in their order."""
        return [judged_call_of(line) for line in self.lines]


def judge_by_placebos(
    load_model: "Callable[[], LanguageModel]",
    choices: RunChoices,
    tool: str,
    scoring_recipe_id: str,
    keep_threshold: float,
    texts: Sequence[TextOfCalls],
    partial: PartialFile,
    report: Callable[[int], None],
) -> Rate:
    """Score placebos of all calls, whose results are the pool; returns the rate at the keep threshold.

    Adds to each line `information`, `placebo_reduction`, `placebos` and `placebo_probability`, as the view
    `scored_calls` has them; `gain` and `kept` then follow the run's whole keep rule. `report` is told how many
    more texts are done.
    """
    # 1. The pool, and the recipe that names it.
    results = []
    for text in texts:
        results += [(call.call_id, call.document_id, str(call.scored.result)) for call in text.calls]
    placebo_choices = choices.part(PlaceboChoices)
    pool = Pool.of_calls(results, placebo_choices)
    content = json.dumps([[str(item.call_id), str(item.document_id), item.result] for item in pool.results])
    pool_hash = hashlib.sha256(content.encode("ascii")).hexdigest()
    recipe = placebo_recipe(scoring_recipe_id, tool, placebo_choices, pool.sample_share, pool_hash)
    # 2. The losses, and what they say of each call.
    scoring = PlaceboScoring(load_model, choices, PlaceboDraw(pool), recipe.recipe_id, partial)
    with_placebos: list[tuple[JudgedCall, list[PlaceboLoss]]] = []
    for first in range(0, len(texts), TEXTS_TOGETHER):
        batch = texts[first : first + TEXTS_TOGETHER]
        for text, losses in zip(batch, scoring.losses(batch), strict=True):
            with_placebos += zip(text.calls, losses, strict=True)
            for line, placebos in zip(text.lines, losses, strict=True):
                judge(line, placebos, keep_threshold)
        report(len(batch))
    # 3. What they say of all.
    return false_discovery_rate(with_placebos, pool.sample_share, keep_threshold)


@dataclass(frozen=True)
class PlaceboScoring:
    """Losses of the placebos of texts: those that the partial file has, and others computed."""

    load_model: "Callable[[], LanguageModel]"
    choices: RunChoices
    draw: PlaceboDraw
    recipe_id: str
    partial: PartialFile

    def losses(self, batch: Sequence[TextOfCalls]) -> list[list[list[PlaceboLoss]]]:
        """The losses by text, call and placebo; what was computed is in the partial file then."""
        unscored = [text for text in batch if self.partial.line(self._key(text)) is None]
        calls_of_texts = [(text.text, text.calls) for text in unscored]
        computed = score_placebos(self.load_model, self.choices, calls_of_texts, self.draw)
        losses_of: dict[str, list[list[PlaceboLoss]]] = {}
        for text, losses in zip(unscored, computed, strict=True):
            losses_of[text.text_id] = losses
            fields = [list(map(dataclasses.asdict, placebos)) for placebos in losses]
            self.partial.add(self._key(text), {"placebos": fields})
        return [losses_of.get(text.text_id) or self._stored(text) for text in batch]

    def _stored(self, text: TextOfCalls) -> list[list[PlaceboLoss]]:
        line = self.partial.line(self._key(text)) or {"placebos": []}
        placebos_of_calls = []
        for placebos in line["placebos"]:
            placebos_of_calls.append([PlaceboLoss(**fields) for fields in placebos])
        return placebos_of_calls

    def _key(self, text: TextOfCalls) -> tuple[str, ...]:
        return ("placebos", self.recipe_id, text.text_id)


def judge_by_draw(annotator: ToolAnnotator, texts: Sequence[AnnotatedText], draw: PlaceboDraw) -> None:
    """Score the placebos of the texts' calls, drawn from a pool that is given; what they say is in the rows then."""
    with_calls = list(map(TextOfCalls.of, texts))
    calls_of_texts = [(text.text, text.calls) for text in with_calls]
    scored = score_placebos(annotator.models.model, annotator.choices, calls_of_texts, draw)
    for text, losses in zip(with_calls, scored, strict=True):
        for line, placebos in zip(text.lines, losses, strict=True):
            judge(line, placebos, annotator.keep_threshold)


def judge(line: dict[str, Any], placebos: Sequence[PlaceboLoss], keep_threshold: float) -> None:
    """Add to a line what its placebos say."""
    line["information"] = information(placebos)
    line["placebo_reduction"] = placebo_reduction(placebos)
    line["placebos"] = sum(placebo.information is not None for placebo in placebos)
    line["placebo_probability"] = compared_probability(placebos)
    line["gain"] = gain_of(scored_call_of(line), line["placebo_probability"])
    if line["kept"] and not _reaches(line["gain"], keep_threshold):
        line["kept"] = False
        line["not_kept"] = NO_OTHER_RESULT if line["gain"] is None else LIKE_A_PLACEBO


def false_discovery_rate(
    calls: Sequence[tuple[JudgedCall, Sequence[PlaceboLoss]]], sample_share: float, threshold: float
) -> Rate:
    """The rate of a tool's calls that are all in memory, each with its placebos.

    `runs/placebo_rates.py` counts those of a run.
    """
    kept: Counter[uuid.UUID] = Counter()  # by document
    by_chance: Counter[uuid.UUID] = Counter()
    sampled: list[PlaceboLoss] = []
    for call, placebos in calls:
        gain = gain_of(call.scored, compared_probability(placebos))
        kept[call.document_id] += _reaches(gain, threshold)
        for placebo in placebos:
            if placebo.is_sampled:
                sampled.append(placebo)
                by_chance[call.document_id] += _reaches(placebo.gain, threshold)
    document_ids = {call.document_id for call, _ in calls}
    documents = Counter((by_chance[document_id], kept[document_id]) for document_id in document_ids)
    counted = []
    for (kept_placebos, kept_calls), number in documents.items():
        counted.append(CountedDocuments(kept_placebos, kept_calls, number))
    scored = sum(placebo.has_losses for placebo in sampled)
    return rate_of(counted, calls_represented(len(sampled), sample_share), scored)


def _reaches(gain: float | None, threshold: float) -> bool:
    return gain is not None and is_kept(gain, threshold)
