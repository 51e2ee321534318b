"""A decode step dispatches a fixed number of operations and reads from the device once, however many texts and rows there are."""

import pytest

from benchmarks.launches import ARCHITECTURES, measure_launches

LARGEST = {"llama": 60, "gpt2": 42, "gptj": 60, "gemma2": 80}
"""Operations a layer; a Llama layer's own, without attention over a cache, are 36, and a Gemma layer has two norms more."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_is_few_launches_and_one_read_for_any_number_of_texts(architecture: str) -> None:
    one, many = measure_launches([architecture], [1, 64])["sampling"]
    writing_one, writing_many = measure_launches([architecture], [1, 64])["writing with tools"]
    assert many["rows"] > 400
    assert many["reads"] == writing_many["reads"] == one["reads"] == writing_one["reads"] == 1
