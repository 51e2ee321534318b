"""What reviewers said of a release's calls, and its export.

It has the precision with its interval, the rate of placebos beside it, and the agreement. Precision is the
share of `useful` among `useful`, `useless` and `wrong`; skipped calls do not count. The same share among
placebos, which were shown in between and look the same, says what a reviewer calls useful anyway. For all
reviewers together a call counts once: as useful if more than half of its judgements say so. Agreement is the
share of calls on which two reviewers say the same, and Cohen's kappa, the agreement beyond chance (J. Cohen,
A coefficient of agreement for nominal scales, Educational and Psychological Measurement 20, 1960, 37-46): (o
- e) / (1 - e), with e the agreement of two who say each as often as these do, independently.

Reads `judgements`; `run_page/reviewing.py` writes it.
"""

import datetime
import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.errors import UsageError
from toolformer_ops.evaluation.statistics import Interval, wilson_interval
from toolformer_ops.storage.postgres import database, queries

USEFUL, USELESS, WRONG, SKIP = VERDICTS = ("useful", "useless", "wrong", "skip")
"""What can be said of a call, in the order of the keys 1 to 4."""
EVERYBODY = ""
"""All reviewers together."""


@dataclass(frozen=True)
class Judgement:
    """What counts of one reviewer on one call, or on the placebo in its place."""

    reviewer: str
    tool: str
    call_id: Any
    is_placebo: bool
    verdict: str


@dataclass(frozen=True)
class Rate:
    """How many of the judged calls are useful."""

    useful: int
    useless: int
    wrong: int
    skipped: int

    @property
    def judged(self) -> int:
        """Without those that were skipped."""
        return self.useful + self.useless + self.wrong

    @property
    def share(self) -> float | None:
        """None if nothing was judged."""
        return self.useful / self.judged if self.judged else None

    @property
    def interval(self) -> Interval:
        """Wilson's 95 % interval of the share."""
        return wilson_interval(self.useful, self.judged)


@dataclass(frozen=True)
class ReviewResult:
    """What one reviewer, or everybody, said of one tool's calls in a release."""

    reviewer: str
    """`EVERYBODY` for all together."""
    tool: str
    calls: Rate
    placebos: Rate


@dataclass(frozen=True)
class Agreement:
    """How far two reviewers say the same of what both judged, placebos included."""

    first: str
    second: str
    tool: str
    both: int
    """Calls and placebos that both judged and neither skipped."""
    same: int
    kappa: float | None
    """None if both always say one and the same, so that chance alone would agree."""

    @property
    def share(self) -> float:
        """The share of those that both judged."""
        return self.same / self.both


def judgements_of(connection: Connection, release_id: str) -> list[Judgement]:
    """The judgements of a release that count."""
    rows = database.fetch_all(connection, queries.reviewing.judgements, release_id=release_id)
    return [Judgement(**row._asdict()) for row in rows]


def results(judgements: Sequence[Judgement]) -> list[ReviewResult]:
    """By tool and reviewer, everybody first."""
    counts: dict[tuple[str, str], Counter[tuple[bool, str]]] = defaultdict(Counter)
    by_call: dict[tuple[str, Any, bool], Counter[str]] = defaultdict(Counter)
    for judged in judgements:
        counts[judged.tool, judged.reviewer][judged.is_placebo, judged.verdict] += 1
        by_call[judged.tool, judged.call_id, judged.is_placebo][judged.verdict] += 1
    # For everybody a call counts once: by most of its reviewers; of those that disagree otherwise, by the
    # worse.
    for (tool, _, is_placebo), said in by_call.items():
        del said[SKIP]
        if not said:
            verdict = SKIP
        elif 2 * said[USEFUL] > said.total():
            verdict = USEFUL
        else:
            verdict = WRONG if said[WRONG] >= max(said[USELESS], 1) else USELESS
        counts[tool, EVERYBODY][is_placebo, verdict] += 1
    reviews = []
    for (tool, reviewer), verdicts in sorted(counts.items()):
        calls = Rate(*(verdicts[False, verdict] for verdict in VERDICTS))
        placebos = Rate(*(verdicts[True, verdict] for verdict in VERDICTS))
        reviews.append(ReviewResult(reviewer, tool, calls=calls, placebos=placebos))
    return reviews


def agreements(judgements: Sequence[Judgement]) -> list[Agreement]:
    """Return how far every two reviewers agree, for each tool with something that both judged."""
    said: dict[tuple[str, str], dict[tuple[Any, bool], str]] = defaultdict(dict)
    for judged in judgements:
        if judged.verdict != SKIP:
            said[judged.tool, judged.reviewer][judged.call_id, judged.is_placebo] = judged.verdict
    agreements_of_pairs = []
    for (tool, first), (other_tool, second) in itertools.combinations(sorted(said), 2):
        mine, other = said[tool, first], said[other_tool, second]
        pairs = [(mine[key], other[key]) for key in mine.keys() & other.keys()] if tool == other_tool else []
        if pairs:
            same = sum(left == right for left, right in pairs)
            agreements_of_pairs.append(
                Agreement(first, second, tool, both=len(pairs), same=same, kappa=cohens_kappa(pairs))
            )
    return agreements_of_pairs


def cohens_kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """The agreement of two raters beyond chance, 1 at most; None if chance alone agrees always."""
    size = len(pairs)
    observed = sum(left == right for left, right in pairs) / size
    first_verdicts, second_verdicts = Counter(left for left, _ in pairs), Counter(right for _, right in pairs)
    by_chance = (
        sum(first_verdicts[verdict] * second_verdicts[verdict] for verdict in first_verdicts) / size**2
    )
    return None if by_chance == 1 else (observed - by_chance) / (1 - by_chance)


def export(connection: Connection, release_id: str) -> tuple[str, bytes]:
    """Every judgement of a release as JSON Lines, the newest last.

    Returns the name to write them under, and the content. The name holds the release, the time of the newest
    judgement and the hash of the content: equal judgements have one name, and nothing that was published
    before is changed.

    Raises:
        UsageError: there is no such release, or it has no judgements.
    """
    if not database.fetch_all(connection, queries.reviewing.release, release_id=release_id):
        raise UsageError(
            f"expected the id of a release, found {release_id!r}. `toolformer-ops runs` lists them."
        )
    rows = database.fetch_all(connection, queries.reviewing.export, release_id=release_id)
    if not rows:
        raise UsageError(
            f"release {release_id}: expected judgements to export, found none. The page Review in Airflow "
            "takes them."
        )
    lines = [row._asdict() | {"judged_at": row.judged_at.isoformat()} for row in rows]
    texts = (json.dumps(line, default=str, ensure_ascii=False, sort_keys=True) for line in lines)
    content = "".join(f"{text}\n" for text in texts).encode()
    newest = max(row.judged_at for row in rows).astimezone(datetime.UTC)
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"{release_id}/judgements-{newest:%Y%m%dT%H%M%SZ}-{digest}.jsonl", content
