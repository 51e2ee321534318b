"""Draws by inversion, and random numbers that belong to one token of one sample."""

import hashlib
import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toolformer_ops.language_model.sampling import cumulative_probabilities, draw, only, uniforms


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def drawn(cumulative: torch.Tensor, *uniforms: float) -> list[int]:
    return draw(cumulative, torch.tensor([uniforms], dtype=torch.float64))[0].tolist()


def test_a_token_of_probability_0_is_never_drawn_and_nothing_is_written_to_what_is_given() -> None:
    given_logs = logs(0.0, 1.0, 0.0)
    assert drawn(cumulative_probabilities(given_logs, 1.0, 1.0), 0.0, 0.5, 1.0 - 2.0**-53) == [1, 1, 1]
    assert torch.equal(given_logs, logs(0.0, 1.0, 0.0))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    st.sampled_from([1, 2]),
    st.integers(1, 40),
    st.integers(0, 999),
)
def test_a_draw_is_that_of_a_plain_inversion(weights: list[int], power: int, top: int, number: int) -> None:
    shares = [weight**power / sum(one**power for one in weights) for weight in weights]
    likeliest = sorted(range(len(shares)), key=lambda token: -shares[token])
    before = dict(zip(likeliest, itertools.accumulate((shares[token] for token in likeliest), initial=0), strict=False))
    kept = [share if before[token] < top / 40 else 0.0 for token, share in enumerate(shares)]
    target = (number + 0.5) / 1000 * sum(kept)
    sums = list(itertools.accumulate(kept))
    assume(top == 40 or all(abs(one - top / 40) > 1e-5 for one in before.values()))  # where rounding decides nothing
    assume(all(abs(one - target) > 1e-5 for one in sums))
    expected = next(token for token, reached in enumerate(sums) if reached > target)
    log_probs = logs(*(weight / sum(weights) for weight in weights))
    assert drawn(cumulative_probabilities(log_probs, 1 / power, top / 40), (number + 0.5) / 1000) == [expected]


def test_a_distribution_given_that_the_token_is_one_of_some() -> None:
    assert only(logs(0.1, 0.4, 0.2, 0.3), (0, 3)).exp()[0].tolist() == pytest.approx([0.25, 0.0, 0.0, 0.75])


def test_a_row_without_a_distribution_gives_no_token() -> None:
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.75)):
        found = cumulative_probabilities(torch.tensor([[math.nan, 0.0]]), temperature, top_p)
        assert drawn(found, 0.5) == [-1]


def test_random_numbers_depend_on_key_position_sample_and_step_alone() -> None:
    numbers = uniforms("seed", 3, 0, 5)
    assert numbers.tolist() == uniforms("seed", 3, 0, 5).tolist()
    assert numbers[:2].tolist() == uniforms("seed", 3, 0, 2).tolist()
    digest = hashlib.sha256(b"seed\x003\x000\x004").digest()
    assert numbers[4] == (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53
    others = {uniforms(*key, 1)[0] for key in (("seed", 3, 0), ("other", 3, 0), ("seed", 4, 0), ("seed", 3, 1))}
    assert len(others | set(numbers)) == 8
