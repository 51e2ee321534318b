"""A decode step dispatches a fixed number of operations and reads from the device once, however many texts and rows there are."""

import pytest

from benchmarks.launches import ARCHITECTURES, measure_launches

LARGEST = {"llama": 60, "gpt2": 44, "gptj": 63, "gemma2": 80}
"""Operations a layer where rows branch. Without attention a Llama layer has 34, and a Gemma 2 layer two norms more."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_is_few_launches_and_one_read_for_any_number_of_texts(architecture: str) -> None:
    sampling, writing = measure_launches([architecture], [64])
    assert (sampling["work"], writing["work"]) == ("sampling", "writing with tools")
    assert sampling["rows"] > 400
    assert writing["rows"] == 64
    assert sampling["reads"] == writing["reads"] == 1
    assert max(sampling["a_layer"], writing["a_layer"]) <= LARGEST[architecture]
    assert max(sampling["outside"], writing["outside"]) <= 60
