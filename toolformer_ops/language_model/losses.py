"""The two keep rules: what a call gains by each, and from where on it is kept. Pure numbers, no model.

`paper` (sections 2 and 4.1). The gain is the loss reduction L- minus L+, in nats, of the weighted loss with
`w_t = max(0, 1 - 0.2 t) / 3` for the token t places after the call, so that five tokens count and the weights
of a whole window sum to one. If a text ends sooner, the remaining weights are not scaled up.

`probability`. The gain is by how many nats the next tokens become more probable: the logarithm of the
probability of the next tokens with the result, divided by the largest one without it. That is the
probability of the text alone, with the call but no result, or with a placebo, the result of a call in another
text. The probability of the next tokens is the geometric mean of the probabilities of `PROBABILITY_TOKENS`
tokens, each at least `LEAST_PROBABILITY`; if a text ends sooner, of its remaining tokens.
docs/evidence.md has the comparison by which the rule was chosen.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

KeepRule = Literal["paper", "probability"]
KEEP_RULES: tuple[KeepRule, ...] = get_args(KeepRule)
PROBABILITY_TOKENS = 7
"""How many tokens the rule `probability` reads."""
STORED_TOKENS = 10
"""How many tokens a run with the rule `probability` stores, so that SQL can ask other statistics."""
LEAST_PROBABILITY = 0.01
"""A token counts as at least so probable: an unlikely token says no more than that it is unlikely."""
PROBABILITY_THRESHOLD = 0.22
"""The keep threshold of the rule `probability` for every tool, nats, unless a run has another one.

The next tokens are then 1.25 times as probable."""
PROBABILITY_PRUNE_BELOW = 0.1
"""Below which gain the rule `probability` computes no further, unless a run says otherwise, in nats."""
MOST_GAIN = -math.log(LEAST_PROBABILITY)
"""No call gains more by the rule `probability`, nats."""
SCORED_TOKENS = 5
"""How many tokens after a position have a weight above zero; the paper's 0.2 is its inverse."""


def token_weights(scored_tokens: int) -> tuple[float, ...]:
    """Weights that fall by equal steps over `scored_tokens` tokens and sum to one.

    They are `max(0, 1 - t / scored_tokens)`, normalised.
    """
    steps = range(scored_tokens, 0, -1)
    return tuple(step / sum(steps) for step in steps)


TOKEN_WEIGHTS = token_weights(SCORED_TOKENS)
"""(SCORED_TOKENS,) weights 5/15, 4/15, 3/15, 2/15, 1/15: the paper's `max(0, 1 - 0.2 t)` divided by their
sum, 3."""


def weighted_loss(log_probabilities: Sequence[float]) -> float:
    """The weighted cross entropy, in nats, of the tokens from a position on.

    `log_probabilities` holds natural logarithms for tokens i, i+1, ... ; only the first `SCORED_TOKENS`
    count, and fewer are taken as they are.
    """
    return -math.fsum(
        weight * log_probability
        for weight, log_probability in zip(TOKEN_WEIGHTS, log_probabilities, strict=False)
    )


def is_kept(reduction: float, keep_threshold: float) -> bool:
    """Whether a call is kept: its loss reduction is a number of at least the threshold (tau_f)."""
    return math.isfinite(reduction) and reduction >= keep_threshold


def tokens_scored_by(rule: KeepRule) -> int:
    """How many tokens after a call a run with this rule scores."""
    return SCORED_TOKENS if rule == "paper" else STORED_TOKENS


def probability(log_probabilities: Sequence[float]) -> float:
    """The geometric mean of the probabilities of up to `PROBABILITY_TOKENS` next tokens.

    Each is taken as at least `LEAST_PROBABILITY`. `log_probabilities` holds natural logarithms, at least one.
    It is at most 1: so minus its logarithm is the most that any result gains, which prunes calls.
    """
    read = [max(value, -MOST_GAIN) for value in log_probabilities[:PROBABILITY_TOKENS]]
    return math.exp(math.fsum(read) / len(read))
