"""Draws by inversion, and random numbers that belong to one token of one sample."""

import hashlib
import math

import pytest
import torch

from toolformer_ops.language_model.sampling import cumulative_probabilities, draw, only, uniforms


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def drawn(cumulative: torch.Tensor, *uniforms: float) -> list[int]:
    return draw(cumulative, torch.tensor([uniforms], dtype=torch.float64))[0].tolist()


def test_a_number_selects_the_token_whose_share_it_falls_into() -> None:
    cumulative = cumulative_probabilities(logs(0.2, 0.5, 0.3), temperature=1.0, top_p=1.0)
    assert drawn(cumulative, 0.0, 0.19, 0.21, 0.69, 0.71, 0.999999) == [0, 0, 1, 1, 2, 2]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    cumulative = cumulative_probabilities(logs(0.0, 1.0, 0.0), temperature=1.0, top_p=1.0)
    assert drawn(cumulative, 0.0, 0.5, 1.0 - 2.0**-53) == [1, 1, 1]


def test_temperature_one_half_squares_the_odds() -> None:
    # 0.2 : 0.8 becomes 0.04 : 0.64, that is 1/17 and 16/17.
    cumulative = cumulative_probabilities(logs(0.2, 0.8), temperature=0.5, top_p=1.0)
    assert cumulative[0].tolist() == pytest.approx([1 / 17, 1.0], rel=1e-6)


def test_top_p_leaves_the_fewest_likely_tokens_that_reach_it() -> None:
    cumulative = cumulative_probabilities(logs(0.1, 0.4, 0.2, 0.3), temperature=1.0, top_p=0.65)
    # 0.4 and 0.3 reach 0.65 together; 0.2 and 0.1 fall away.
    assert cumulative[0].tolist() == pytest.approx([0.0, 0.4, 0.4, 0.7])
    assert drawn(cumulative, 0.0, 0.56, 0.58, 0.99) == [1, 1, 3, 3]


def test_a_distribution_given_that_the_token_is_one_of_some() -> None:
    assert only(logs(0.1, 0.4, 0.2, 0.3), (0, 3)).exp()[0].tolist() == pytest.approx([0.25, 0.0, 0.0, 0.75])


def test_a_row_without_a_distribution_gives_no_token() -> None:
    assert drawn(cumulative_probabilities(torch.tensor([[math.nan, 0.0]]), 1.0, 1.0), 0.5) == [-1]


def test_random_numbers_depend_on_key_position_sample_and_step_alone() -> None:
    numbers = uniforms("seed", 3, 0, 5)
    assert numbers.tolist() == uniforms("seed", 3, 0, 5).tolist()
    assert numbers[:2].tolist() == uniforms("seed", 3, 0, 2).tolist()
    digest = hashlib.sha256(b"seed\x003\x000\x004").digest()
    assert numbers[4] == (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53
    others = {uniforms(*key, 1)[0] for key in (("seed", 3, 0), ("other", 3, 0), ("seed", 4, 0), ("seed", 3, 1))}
    assert len(others | set(numbers)) == 8
    many = uniforms("seed", 0, 0, 4000)
    assert all(0 <= number < 1 for number in many)
    assert sum(many) / 4000 == pytest.approx(0.5, abs=0.02)
