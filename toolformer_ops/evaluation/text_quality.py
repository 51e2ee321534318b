"""Perplexity of texts with calls disabled (section 4.3, Table 8): by token, and by byte, which compares vocabularies.

Perplexity by token is exp(nats / tokens) over all texts together, by byte exp(nats / bytes of UTF-8). Calls are disabled for every
variant, also for models that never learned any, so that all rows are of one kind. Each text is read by itself
(`language_model/perplexity.py` says how). The interval is a bootstrap over texts.
"""

import logging
import math
import time
from collections.abc import Sequence

from toolformer_ops.evaluation.records import SuiteScore
from toolformer_ops.evaluation.running import Candidate
from toolformer_ops.evaluation.statistics import bootstrap_perplexity
from toolformer_ops.evaluation.suites import PERPLEXITY
from toolformer_ops.evaluation.suites.texts import LoadedTexts

logger = logging.getLogger(__name__)

METRICS = ("perplexity_by_token", "perplexity_by_byte")
TEXTS_AT_ONCE = 16
PROGRESS_SECONDS = 15.0


def evaluate_texts(candidate: Candidate, loaded: LoadedTexts, stride: int | None = None) -> list[SuiteScore]:
    """Two scores: by token and by byte. Texts without a token that could be scored do not count.

    Raises:
        ValueError: the stride is not between 1 and the model's window, or no text has a token.
    """
    started = last_line = time.monotonic()
    losses = []
    for first in range(0, len(loaded.texts), TEXTS_AT_ONCE):
        some = candidate.model.language_model.text_losses(loaded.texts[first : first + TEXTS_AT_ONCE], stride=stride)
        losses += [loss for loss in some if loss.tokens > 0]
        if time.monotonic() - last_line > PROGRESS_SECONDS or first + TEXTS_AT_ONCE >= len(loaded.texts):
            last_line = time.monotonic()
            logger.info(
                "%s %s, %s: %d of %d texts read, %d tokens, %.0f s",
                PERPLEXITY, loaded.data_set.name, candidate.title, min(first + TEXTS_AT_ONCE, len(loaded.texts)),
                len(loaded.texts), sum(loss.tokens for loss in losses), last_line - started,
            )  # fmt: skip
    if not losses:
        raise ValueError(f"{loaded.data_set.name}: expected texts of at least one token, found none")
    seconds = round(time.monotonic() - started, 3)
    nats = [loss.nats for loss in losses]
    units = ([loss.tokens for loss in losses], [loss.utf8_bytes for loss in losses])
    return [_score(candidate, loaded, metric, nats, of, seconds) for metric, of in zip(METRICS, units, strict=True)]


def _score(
    candidate: Candidate, loaded: LoadedTexts, metric: str, nats: Sequence[float], units: Sequence[int], seconds: float
) -> SuiteScore:
    interval = bootstrap_perplexity(nats, units)
    return SuiteScore(
        PERPLEXITY,
        loaded.data_set.name,
        candidate.name,
        candidate.variant,
        0,
        len(nats),
        metric,
        math.exp(math.fsum(nats) / sum(units)),
        interval.low,
        interval.high,
        {},
        0,
        None,
        None,
        seconds,
        loaded.sha256,
    )
