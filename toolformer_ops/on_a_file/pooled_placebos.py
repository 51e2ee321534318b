"""Placebos of the calls of a file, whose results are the pool: what the stage of placebos does, without a database."""

import dataclasses
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolformer_ops.annotation.placebo import (
    JudgedCall,
    PlaceboDraw,
    PlaceboLoss,
    carries_information,
    information,
    placebo_reduction,
    score_placebos,
)
from toolformer_ops.on_a_file.annotator import judged_call_of
from toolformer_ops.on_a_file.partial_file import PartialFile
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.runs.placebo_pools import Pool
from toolformer_ops.runs.placebo_rates import CountedDocuments, Rate, rate_of
from toolformer_ops.runs.recipes import placebo_recipe

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

NO_OTHER_RESULT = "no_other_result"
BELOW_TAU_INFORMATION = "below_tau_information"
"""Why a call that saves enough is not kept (`runs/reasons.py`)."""


@dataclass(frozen=True)
class TextOfCalls:
    """The calls of one tool in a text, as `call_line` writes them."""

    text_id: str
    text: str
    lines: Sequence[dict[str, Any]]
    """Of calls with losses, or with those that prove that they save too little."""


def judge_by_placebos(
    load_model: "Callable[[], LanguageModel]",
    choices: RunChoices,
    tool: str,
    scoring_recipe_id: str,
    keep_threshold: float,
    texts: Sequence[TextOfCalls],
    batches: Iterable[Sequence[TextOfCalls]],
    partial: PartialFile,
    report: Callable[[int], None],
) -> Rate:
    """Score placebos of all calls, whose results are the pool; returns the rate at the keep threshold.

    Adds to each line `information`, `placebo_reduction` and `placebos`, as the view `scored_calls` has them;
    `kept` then follows the run's whole keep rule. `batches` are the same texts, as they are computed together.
    `report` is told how many texts a batch had.
    """
    # 1. The pool, and the recipe that names it.
    every = [judged_call_of(line) for text in texts for line in text.lines]
    results = [(call.call_id, call.document_id, str(call.scored.result)) for call in every]
    pool = Pool.of_calls(results, choices.part(PlaceboChoices))
    content = json.dumps([[str(item.call_id), str(item.document_id), item.result] for item in pool.results])
    pool_hash = hashlib.sha256(content.encode("ascii")).hexdigest()
    placebo_choices = choices.part(PlaceboChoices)
    recipe = placebo_recipe(scoring_recipe_id, tool, placebo_choices, pool.sample_share, pool_hash)
    # 2. The losses, and what they say of each call.
    draw = PlaceboDraw(pool)
    tau = choices.least_information
    with_placebos: list[tuple[JudgedCall, list[PlaceboLoss]]] = []
    for batch in batches:
        unscored = [text for text in batch if partial.line(_key(recipe.recipe_id, text)) is None]
        calls_of = {text.text_id: [judged_call_of(line) for line in text.lines] for text in batch}
        scored = score_placebos(
            load_model, choices, [(text.text, calls_of[text.text_id]) for text in unscored], draw
        )
        losses_of = {text.text_id: losses for text, losses in zip(unscored, scored, strict=True)}
        for text in unscored:
            losses = [[dataclasses.asdict(one) for one in of_call] for of_call in losses_of[text.text_id]]
            partial.add(_key(recipe.recipe_id, text), {"placebos": losses})
        for text in batch:
            finished = partial.line(_key(recipe.recipe_id, text))
            if finished is not None:
                losses_of[text.text_id] = [
                    [PlaceboLoss(**one) for one in of_call] for of_call in finished["placebos"]
                ]
            calls = zip(calls_of[text.text_id], text.lines, losses_of[text.text_id], strict=True)
            for call, line, placebos in calls:
                with_placebos.append((call, placebos))
                _judge(line, placebos, tau)
        report(len(batch))
    # 3. What they say of all.
    return false_discovery_rate(with_placebos, pool.sample_share, keep_threshold, tau)


def _key(recipe_id: str, text: TextOfCalls) -> tuple[str, ...]:
    return ("placebos", recipe_id, text.text_id)


def _judge(line: dict[str, Any], placebos: Sequence[PlaceboLoss], tau: float | None) -> None:
    """Add to a line what its placebos say."""
    line["information"] = information(placebos)
    line["placebo_reduction"] = placebo_reduction(placebos)
    line["placebos"] = sum(placebo.information is not None for placebo in placebos)
    if line["kept"] and not carries_information(placebos, tau):
        line["kept"] = False
        line["not_kept"] = NO_OTHER_RESULT if line["information"] is None else BELOW_TAU_INFORMATION


def false_discovery_rate(
    calls: Sequence[tuple[JudgedCall, Sequence[PlaceboLoss]]],
    sample_share: float,
    threshold: float,
    tau_information: float | None,
) -> Rate:
    """The rate of a tool's calls that are all in memory, each with its placebos; `runs/placebo_rates.py` counts those of a run."""
    kept: Counter[uuid.UUID] = Counter()  # by document
    by_chance: Counter[uuid.UUID] = Counter()
    for call, placebos in calls:
        if call.scored.is_kept(threshold) and carries_information(placebos, tau_information):
            kept[call.document_id] += 1
        by_chance[call.document_id] += sum(
            placebo.is_sampled and placebo.is_kept(threshold, tau_information) for placebo in placebos
        )
    sampled = [placebo for _, placebos in calls for placebo in placebos if placebo.is_sampled]
    scored = sum(placebo.has_losses for placebo in sampled)
    documents = Counter(
        (by_chance[document], kept[document]) for document in {call.document_id for call, _ in calls}
    )
    counted = [
        CountedDocuments(placebos, of_calls, number) for (placebos, of_calls), number in documents.items()
    ]
    return rate_of(counted, len(sampled) / sample_share, scored)
