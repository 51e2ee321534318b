"""The paper's weights, weighted loss and keep rule (section 2 and 4.1): pure numbers, no model.

`w_t = max(0, 1 - 0.2 t) / 3` for the token t places after the call, so that five tokens count and the weights
of a whole window sum to one. If a text ends sooner, the remaining weights are not scaled up.
All losses are in nats.
"""

import math
from collections.abc import Sequence

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
