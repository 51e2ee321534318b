"""What a seed of a study computes once and all its arms share: every call of every text, with its losses token by token.

    annotate   the factory's method on the texts: all calls that have a result, with their losses (`annotated.jsonl`)
    inform     of every call the log probabilities of the ten tokens behind it (`calls.jsonl`)


Both continue where they were killed. Nothing is pruned, so that every rule can choose among all calls.
"""

import functools
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.devices import load_to_score
from toolformer_ops.config import Settings
from toolformer_ops.language_model.batch_sizes import device_kind
from toolformer_ops.language_model.losses import SCORED_TOKENS
from toolformer_ops.records import Document, PlacedCall
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.tools.base import Tool

if TYPE_CHECKING:
    from toolformer_ops.annotation.placebo import JudgedCall
    from toolformer_ops.language_model.model import LanguageModel

logger = logging.getLogger(__name__)

TEXTS_TOGETHER = {"cpu": 16, "cuda": 128}
"""By kind of device; a kill loses no more."""
ANNOTATED = "annotated.jsonl"
CALLS = "calls.jsonl"
PREFIXES = ("without_call", "without_result", "with_result")

Record = dict[str, Any]
"""A text with its `calls`, each as `toolformer-ops annotate` prints it."""


def annotate(
    settings: Settings, tool: Tool, choices: RunChoices, documents: Sequence[Document], folder: Path
) -> list[Record]:
    """Return one record a text, with all its `calls` that have a result; what the folder holds already is not annotated again."""
    from toolformer_ops.on_a_file.annotate.annotator import Models
    from toolformer_ops.on_a_file.annotate.call_table import printed
    from toolformer_ops.on_a_file.annotate.text_annotator import TextAnnotator, ToolAnnotator

    load = functools.cache(lambda: load_to_score(settings, choices.model))
    annotator = ToolAnnotator(settings=settings, tool=tool, choices=choices, models=Models(load))
    texts = TextAnnotator(settings, choices, [annotator])

    def annotated(group: Sequence[Document]) -> list[Record]:
        items = [texts.to_annotate(str(document.document_id), document) for document in group]
        return [
            {"document_id": text.name, "text": text.document.text, "calls": list(map(printed, text.rows))}
            for text in annotator.annotated(items)
        ]

    return _continued(folder / ANNOTATED, documents, annotated, "annotated", _texts_together(settings))


def inform(
    settings: Settings, choices: RunChoices, annotated: Sequence[Record], folder: Path
) -> list[Record]:
    """Return the records with `log_p` of each call.

    log_p   by prefix of `PREFIXES` and `with_placebo`: natural logarithms of the up to ten tokens behind the
            call, in order; the placebo is the result of a call of another text (None if there is none)
    """
    from toolformer_ops.annotation.placebo import PlaceboDraw
    from toolformer_ops.on_a_file.annotate.annotator import judged_call_of
    from toolformer_ops.runs.placebo_pools import Pool

    every = [judged_call_of(call) for record in annotated for call in record["calls"]]
    pool = Pool.of_calls(
        ((call.call_id, call.document_id, str(call.scored.result)) for call in every if call.has_losses),
        PlaceboChoices(placebos=1, placebo_sample=0),
    )
    draw = PlaceboDraw(pool)
    load = functools.cache(lambda: load_to_score(settings, choices.model))

    def informed(group: Sequence[Record]) -> list[Record]:
        of_group = [(record["text"], [judged_call_of(call) for call in record["calls"]]) for record in group]
        log_p = _log_probabilities(load, of_group, draw)
        records = []
        for record in group:
            calls = [call | {"log_p": next(log_p)} for call in record["calls"]]
            records.append({**record, "calls": calls})
        return records

    return _continued(folder / CALLS, annotated, informed, "informed", _texts_together(settings))


def stored_records(folder: Path) -> list[Record]:
    """The records that `inform` wrote into a folder, without one that a killed process wrote in part."""
    file = folder / CALLS
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _log_probabilities(
    load: "Callable[[], LanguageModel]",
    texts: "Sequence[tuple[str, Sequence[JudgedCall]]]",
    draw: Any,
) -> Iterator[dict[str, list[float] | None]]:
    """Of each call of the texts, in order: `log_p` of `inform`."""
    # 1. Each call with its own result, and behind it with another's if there is one.
    results_of: list[list[str]] = []
    placed: list[tuple[str, list[PlacedCall]]] = []
    for text, calls in texts:
        of_text: list[PlacedCall] = []
        for call in calls:
            results = [str(call.scored.result), *(other.result for other in draw.of_call(call, 1))]
            results_of.append(results)
            of_text += [PlacedCall(call.token, call.call, result) for result in results]
        placed.append((text, of_text))
    # 2. All at once.
    with_calls = [(text, of_text) for text, of_text in placed if of_text]
    scored = ten_tokens(load(), with_calls) if with_calls else []
    log_p = itertools.chain.from_iterable(scored)
    # 3. The other result beside the own.
    for results in results_of:
        own = next(log_p)
        others = [next(log_p)["with_result"] for _ in results[1:]]
        yield {**own, "with_placebo": others[0] if others else None}


def ten_tokens(
    model: "LanguageModel", texts: Sequence[tuple[str, Sequence[PlacedCall]]]
) -> list[list[dict[str, list[float]]]]:
    """By text and call, by prefix of `PREFIXES`: the log probabilities of the up to ten tokens behind the call.

    The prefix stands before the whole text, so the tokens from the sixth on are those that a call with the
    same prefix would be scored by, were it five tokens later: two passes of the engine's own scoring give ten
    tokens.
    """
    # 1. Each call at both places, all at once.
    placed: list[tuple[str, list[PlacedCall]]] = []
    for text, calls in texts:
        tokens = len(model.tokenize(text).ids)
        both = [(call, replace(call, token=call.token + SCORED_TOKENS)) for call in calls]
        placed.append((text, [call for pair in both for call in pair if call.token < tokens]))
    scored = model.score_texts(placed)
    # 2. The tokens of the second place behind those of the first.
    by_text: list[list[dict[str, list[float]]]] = []
    for (_, calls), (_, at_places), losses in zip(texts, placed, scored, strict=True):
        by_place = zip(at_places, losses, strict=True)
        tokens_of = {
            (item.call, item.result, item.token): of.token_log_probabilities for item, of in by_place
        }
        of_text: list[dict[str, list[float]]] = []
        for call in calls:
            places = (call.token, call.token + SCORED_TOKENS)
            parts = [tokens_of.get((call.call, call.result, place)) for place in places]
            of_text.append({})
            for prefix in PREFIXES:
                there = [getattr(part, prefix) for part in parts if part is not None]
                of_text[-1][prefix] = [*itertools.chain.from_iterable(there)]
        by_text.append(of_text)
    return by_text


def _texts_together(settings: Settings) -> int:
    return TEXTS_TOGETHER[device_kind(settings.device)]


def _continued(
    file: Path,
    items: Sequence[Any],
    work: Callable[[Sequence[Any]], list[Record]],
    done_word: str,
    together: int,
) -> list[Record]:
    """Return the records of all items, those of `file` and then those of `work`, which is given `together` at once.

    What was left is cut to whole groups, so that the rest is computed in the same batches.
    """
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(items):
        whole = whole[: len(whole) - len(whole) % together]
    if len(whole) < len(lines):
        file.write_text("".join(whole), encoding="utf-8")
    done = [json.loads(line) for line in whole]
    for first in range(len(done), len(items), together):
        records = work(items[first : first + together])
        with file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)
        done += records
        logger.info("%s %d of %d texts", done_word, len(done), len(items))
    return done
