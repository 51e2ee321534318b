"""A decode step dispatches a fixed number of operations and reads from the device once, however many texts and rows there are."""

import pytest

from benchmarks.launches import measure_launches

LARGEST = {("llama", True): 26, ("llama", False): 55, ("gemma2", True): 45}
"""Operations a layer where rows branch, in bfloat16, by architecture and whether its parts are compiled.

Plain a Llama layer has 37 without attention, 16 in attention, of which each row's own columns are ten, and 2 for
rows that move. Compiled, the parts between matrix products are 5 of 37, and 10 are in attention. A Gemma 2 layer
has two norms more; it caps its scores, for which there is no kernel.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "compiles"), LARGEST)
def test_a_step_is_few_launches_with_one_read_for_any_number_of_texts(architecture, compiles):
    few_sampling, few_writing, sampling, writing = measure_launches(
        [architecture], [16, 32], compiles=compiles
    )
    assert (sampling["work"], writing["work"]) == ("sampling", "writing with tools")
    assert few_sampling["rows"] <= 128
    assert sampling["rows"] > 240
    assert writing["rows"] == 32
    assert sampling["reads"] == writing["reads"] == 1
    assert (sampling["a_layer"], writing["a_layer"]) == (few_sampling["a_layer"], few_writing["a_layer"])
    assert max(sampling["a_layer"], writing["a_layer"]) <= LARGEST[architecture, compiles]
    assert max(sampling["outside"], writing["outside"]) <= 60
