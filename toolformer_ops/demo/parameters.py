"""The demo's numbers, each with its reason; what is not here has the paper's value (`runs/choices.py`, `tools/base.py`).

They are chosen so that `make demo` ends within ten minutes on two cores. The method is the same; the numbers are smaller.

`scoring_context_tokens` stays empty (the whole text), which is best here: the texts are short. Of the 133 calls sampled for the 46
sums, 19 save 0.5 nats with the whole text, and also with 64 or 32 tokens before the call; with 16 tokens 16, with 8 tokens 14
(SmolLM2-135M, float32, 2026-11-21, this file's numbers). With `prune_below` at its default the kept calls are the same, every one,
and 74 of the 133 are not scored to the end.
"""

from collections.abc import Mapping
from types import MappingProxyType

from toolformer_ops.runs.choices import RunChoices

DEMO_DOCUMENTS = 64
"""Documents of the demo corpus that `make demo` takes unless told otherwise: what two cores do in the time."""

DEMO_NUMBERS: Mapping[str, object] = MappingProxyType(
    {
        # A model of 135 million parameters seldom writes a tool's name unaided, so nearly all free samples would not parse.
        "call_prefix": "tool_name",
        # With so small a model p(" [") is seldom above the paper's 0.05. Before the result of a sum, where a call belongs, it is
        # above 0.005 in 43 of the demo's 46 sums; elsewhere it is mostly below, and then nothing is sampled.
        "sampling_threshold": 0.005,
        # The place before the result is the likeliest of its text in 39 of the 46, and among the two likeliest in 44.
        "max_positions": 2,
        # With two samples a place 16 of the 46 sums keep a call, with three 19; QA and WikiSearch would pay for the third.
        "samples_per_position": 2,
        # At 1.0 the sums kept a call in 16 of 46 texts, at 0.7 in 22 (three places, three samples): fewer slips in copying digits.
        "temperature": 0.7,
        # The longest sum takes 15 tokens. A step costs the same for one sample as for six, so that the longest sample decides.
        "max_call_tokens": 20,
        # Some eight passes over the release, in batches that two cores finish within two minutes. At the paper's rate so few steps
        # would teach nothing; at ten times the rate the model begins to call.
        "finetune_steps": 12,
        "finetune_learning_rate": 1e-4,
        "finetune_batch": 8,
        "finetune_device_batch": 4,
        # Enough to see the development perplexity; each is a pass of some 60 tokens.
        "finetune_dev_documents": 16,
        # The longest text of the demo corpus with its calls is shorter than this.
        "finetune_length": 256,
    }
)
"""Fields of `RunChoices` in which the demo differs from the defaults."""


def demo_parameters(corpus: str, model: str, **choices: object) -> RunChoices:
    """The demo's parameters for a corpus and a model; `choices` go before the demo's numbers.

    Raises:
        ParameterError: a choice is unknown or out of its bounds.
    """
    return RunChoices.parse({**DEMO_NUMBERS, "corpus": corpus, "model": model, **choices})
