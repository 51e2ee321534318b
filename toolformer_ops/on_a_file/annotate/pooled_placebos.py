"""Placebos of calls without a database, as the stage of placebos scores them.

Their pool is given (`call_table.py`), or is the results of the calls at hand.
"""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
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
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.on_a_file.annotate.annotator import judged_call_of, with_verdict
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.runs.placebo_pools import Pool
from toolformer_ops.runs.placebo_rates import CountedDocuments, Rate, calls_represented, rate_of
from toolformer_ops.runs.recipes import placebo_recipe

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

PLACEBO_LOSSES = "placebo_losses"
"""The field of a row that holds its placebos, each with the fields of `PlaceboLoss`; stored, not printed."""


@dataclass(frozen=True)
class TextOfCalls:
    """The calls of one tool in a text, as `annotate` writes them."""

    text_id: str
    text: str
    lines: Sequence[dict[str, Any]]
    """Calls with losses, or with those that prove that they save too little."""

    @classmethod
    def of_rows(cls, text_id: str, text: str, rows: Sequence[dict[str, Any]]) -> "TextOfCalls":
        """The rows of a text that have losses."""
        scored = [
            row for row in rows if row["result"] is not None and row["reason"] in (None, "pruned_below")
        ]
        return cls(text_id, text, scored)

    @functools.cached_property
    def calls(self) -> list[JudgedCall]:
        """The calls of the lines, in their order."""
        return [judged_call_of(line) for line in self.lines]


@dataclass(frozen=True)
class DrawnPool:
    """The results of some calls of a tool, from which placebos are drawn."""

    draw: PlaceboDraw
    recipe_id: str
    """Names all that decides a placebo and its losses."""
    sample_share: float

    @classmethod
    def of(
        cls, choices: RunChoices, tool: str, scoring_recipe_id: str, texts: Sequence[TextOfCalls]
    ) -> "DrawnPool":
        """The pool of the calls of these texts."""
        results = []
        for text in texts:
            results += [(call.call_id, call.document_id, str(call.scored.result)) for call in text.calls]
        placebo_choices = choices.part(PlaceboChoices)
        pool = Pool.of_calls(results, placebo_choices)
        content = json.dumps(
            [[str(item.call_id), str(item.document_id), item.result] for item in pool.results]
        )
        pool_hash = hashlib.sha256(content.encode("ascii")).hexdigest()
        recipe = placebo_recipe(scoring_recipe_id, tool, placebo_choices, pool.sample_share, pool_hash)
        return cls(PlaceboDraw(pool), recipe.recipe_id, pool.sample_share)


def judge(
    load_model: "Callable[[], LanguageModel]",
    choices: RunChoices,
    keep_threshold: float,
    texts: Sequence[TextOfCalls],
    draw: PlaceboDraw,
) -> None:
    """Score the placebos of the texts' calls together.

    Adds to each line `information`, `placebo_reduction`, `placebos` and `placebo_probability`, as the view
    `scored_calls` has them, and its placebos; `gain` and `kept` then follow the run's whole keep rule.
    """
    calls_of_texts = [(text.text, text.calls) for text in texts]
    scored = score_placebos(load_model, choices, calls_of_texts, draw)
    for text, losses in zip(texts, scored, strict=True):
        for line, call, placebos in zip(text.lines, text.calls, losses, strict=True):
            probability = compared_probability(placebos)
            line.update(
                {
                    "information": information(placebos),
                    "placebo_reduction": placebo_reduction(placebos),
                    "placebos": sum(placebo.information is not None for placebo in placebos),
                    "placebo_probability": probability,
                    "gain": gain_of(call.scored, probability),
                    PLACEBO_LOSSES: list(map(asdict, placebos)),
                }
            )
            line.update(with_verdict(line, keep_threshold))


@dataclass
class PlaceboCounts:
    """What the false-discovery rate of a tool's calls is estimated from."""

    documents: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Documents, by their sampled placebos and by their calls that the rule keeps."""
    sampled: int = 0
    """Calls of the sample."""
    scored: int = 0
    """Those of them that have a placebo."""

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Count rows that hold all calls of their documents."""
        kept: Counter[str] = Counter()  # by document
        by_chance: Counter[str] = Counter()
        judged = [row for row in rows if row.get(PLACEBO_LOSSES) is not None]
        for row in judged:
            document_id, threshold = row["document_id"], row["keep_threshold"]
            kept[document_id] += reaches(row["gain"], threshold)
            for placebo in (PlaceboLoss(**fields) for fields in row[PLACEBO_LOSSES]):
                if placebo.is_sampled:
                    self.sampled += 1
                    self.scored += placebo.has_losses
                    by_chance[document_id] += reaches(placebo.gain, threshold)
        for document_id in {row["document_id"] for row in judged}:
            self.documents[by_chance[document_id], kept[document_id]] += 1

    def add_counts(self, other: "PlaceboCounts") -> None:
        """Add what was counted of other documents."""
        self.documents += other.documents
        self.sampled += other.sampled
        self.scored += other.scored

    def rate(self, sample_share: float) -> Rate:
        """The share of the kept calls that is kept by chance."""
        counted = []
        for (placebos, calls), documents in self.documents.items():
            counted.append(CountedDocuments(placebos, calls, documents))
        return rate_of(counted, calls_represented(self.sampled, sample_share), self.scored)


def reaches(gain: float | None, threshold: float) -> bool:
    """Whether a call is kept that gains so much; None is no gain."""
    return gain is not None and is_kept(gain, threshold)
