"""The demo's numbers, each with its reason; what is not here has the paper's value (`run_parameters.py`, `tools/base.py`).

They are chosen so that `make demo` ends within ten minutes on two cores. The method is the same; the numbers are smaller.
"""

from collections.abc import Mapping
from types import MappingProxyType

from toolformer_ops.run_parameters import RunParameters, parse_run_parameters

DEMO_NUMBERS: Mapping[str, object] = MappingProxyType(
    {
        # A model of 135 million parameters seldom writes a tool's name unaided: nearly all free samples fail to parse.
        "call_prefix": "tool_name",
        # p(" [") of so small a model is seldom above the paper's 0.05, so that the k likeliest places are taken instead.
        "sampling_threshold": 0.0,
        # Texts of 20 to 60 words: six places find the one before a sum's result, or before a date.
        "max_positions": 6,
        # The paper's m of most tools; the Calculator's 10 would double the time of its sampling.
        "samples_per_position": 5,
        # A sum, a search term or a short question; longer samples are mostly the model rambling on.
        "max_call_tokens": 24,
        # About one pass over the release, in batches that two cores finish within a minute: enough to see the loss fall.
        "finetune_steps": 12,
        "finetune_batch": 8,
        "finetune_device_batch": 4,
        # The longest text of the demo corpus with its calls is shorter than this.
        "finetune_length": 256,
    }
)
"""Fields of `RunParameters` in which the demo differs from the defaults."""


def demo_parameters(corpus: str, model: str, **choices: object) -> RunParameters:
    """The demo's parameters for a corpus and a model; `choices` go before the demo's numbers.

    Raises:
        ParameterError: a choice is unknown or out of its bounds.
    """
    return parse_run_parameters({**DEMO_NUMBERS, "corpus": corpus, "model": model, **choices})
