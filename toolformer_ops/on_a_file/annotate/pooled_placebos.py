"""Placebos of calls without a database: their pool, what they say of a call, and the rate that follows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toolformer_ops.annotation.placebo import (
    JudgedCall,
    PlaceboLoss,
    compared_probability,
    gain_of,
    information,
    placebo_reduction,
)
from toolformer_ops.annotation.scoring import scored_call_of
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.on_a_file.annotate.annotator import with_verdict
from toolformer_ops.runs.choices import PlaceboChoices
from toolformer_ops.runs.placebo_pools import Pool
from toolformer_ops.runs.placebo_rates import CountedDocuments, Rate, calls_represented, rate_of

PLACEBO_LOSSES = "placebo_losses"
"""The field of a row that holds its placebos, each with the fields of `PlaceboLoss`; stored, not printed."""


def pool_of(calls: Iterable[JudgedCall], choices: PlaceboChoices) -> Pool:
    """The pool of the results of these calls, which all have losses."""
    return Pool.of_calls(
        ((call.call_id, call.document_id, str(call.scored.result)) for call in calls), choices
    )


def with_placebos(
    row: Mapping[str, Any], placebos: Sequence[PlaceboLoss], keep_threshold: float
) -> dict[str, Any]:
    """The row of a call with its placebos, and with what they say of it, as the view `scored_calls` has it.

    `gain` and `kept` then follow the run's whole keep rule.
    """
    probability = compared_probability(placebos)
    judged = {
        **row,
        "information": information(placebos),
        "placebo_reduction": placebo_reduction(placebos),
        "placebos": sum(placebo.information is not None for placebo in placebos),
        "placebo_probability": probability,
        "gain": gain_of(scored_call_of(row), probability),
        PLACEBO_LOSSES: list(map(asdict, placebos)),
    }
    return with_verdict(judged, keep_threshold)


@dataclass
class PlaceboCounts:
    """What the false-discovery rate of a tool's calls is estimated from."""

    documents: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Documents, by their sampled placebos and by their calls that the rule keeps."""
    sampled: int = 0
    """Calls of the sample."""
    scored: int = 0
    """The calls that have a placebo."""

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

    def __add__(self, other: "PlaceboCounts") -> "PlaceboCounts":
        """The counts of both, of different documents."""
        return PlaceboCounts(
            documents=self.documents + other.documents,
            sampled=self.sampled + other.sampled,
            scored=self.scored + other.scored,
        )

    def rate(self, sample_share: float) -> Rate:
        """The share of the kept calls that is kept by chance."""
        counted = []
        for (placebos, calls), documents in self.documents.items():
            counted.append(CountedDocuments(placebos, calls, documents))
        return rate_of(counted, calls_represented(self.sampled, sample_share), self.scored)


def reaches(gain: float | None, threshold: float) -> bool:
    """Whether a call is kept that gains so much; None is no gain."""
    return gain is not None and is_kept(gain, threshold)
