"""A decode step dispatches a fixed number of operations and reads from the device once, however many texts and rows there are."""

import pytest

from benchmarks.launches import ARCHITECTURES, measure_launches

LARGEST = {"llama": 60, "gpt2": 45, "gptj": 65, "gemma2": 88}
"""Operations a layer where rows branch. Without attention a Llama layer has 34, and a Gemma 2 layer two norms more."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_is_few_launches_and_one_read_for_any_number_of_texts(architecture: str) -> None:
    found = measure_launches([architecture], [8, 64])
    assert [(one["work"], one["texts"]) for one in found] == [
        (work, texts) for texts in (8, 64) for work in ("sampling", "writing with tools")
    ]
    few, few_written, many, many_written = found
    assert (many["rows"], many_written["rows"]) > (400, 63)
    assert [one["reads"] for one in found] == [1] * 4
    assert max(one["a_layer"] for one in found) <= LARGEST[architecture]
    assert max(one["outside"] for one in found) <= 60
    assert (many["a_layer"], many["outside"]) == (few["a_layer"], few["outside"])
    assert (many_written["a_layer"], many_written["outside"]) == (few_written["a_layer"], few_written["outside"])
