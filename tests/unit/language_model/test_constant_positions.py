"""LongRoPE has other positions in passes with a long sequence: the window ends before it."""

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import save_tiny
from tests.unit.language_model.conftest import LONG_TEXT, TEXT, calculator
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models.sharing import constant_positions

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.0, 1.0, 1.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": 96,
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("models") / "longrope"
    return LanguageModel.load(str(save_tiny("llama", folder, rope_parameters=LONGROPE)))


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        (LONGROPE, 96),
        ({"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default"}}, 96),
        ({**LONGROPE, "long_factor": LONGROPE["short_factor"]}, None),  # the same for every length
        ({"rope_type": "yarn", "factor": 4.0}, None),
        ({"rope_type": "default", "rope_theta": 1e6}, None),
        (None, None),
    ],
)
def test_positions_are_constant_up_to_the_length_of_pre_training(rope, tokens):
    assert constant_positions(rope) == tokens


def test_the_window_ends_where_positions_change(engine):
    assert engine.window_tokens == 96


def test_a_text_has_the_losses_beside_a_long_one_that_it_has_alone(engine):
    short, long = (TEXT, [calculator(20)]), (LONG_TEXT, [calculator(400)])
    assert engine.score_texts([short, long])[0] == engine.score_texts([short])[0]
