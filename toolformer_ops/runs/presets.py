"""Presets: values for the fields of a run's choices that were left empty, each number with its reason.

The fields, their bounds and descriptions are in `choices.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from toolformer_ops.language_model.losses import PROBABILITY_PRUNE_BELOW

Preset = Literal["paper", "small_model", "only_look", "preview"]

ON_ONE_MACHINE: Preset = "small_model"
"""The preset of the commands that people type, unless they name another: `run`, `annotate`, `check`."""

_ANNOTATION_BY_A_SMALL_MODEL: Mapping[str, Any] = MappingProxyType(
    {
        # A model of 135 million parameters seldom writes a tool's name unaided, so nearly all free
        # samples would not parse.
        "call_prefix": "tool_name",
        # With so small a model p(" [") is seldom above the paper's 0.05. Before the result of a sum,
        # where a call belongs, it is above 0.005 in 43 of the demo's 46 sums; elsewhere it is mostly
        # below, and then nothing is sampled.
        "sampling_threshold": 0.005,
        # The place before the result is the likeliest of its text in 39 of the 46, and among the two
        # likeliest in 44.
        "max_positions": 2,
        # With two samples a place 16 of the 46 sums keep a call, with three 19; QA and WikiSearch would
        # pay for the third.
        "samples_per_position": 2,
        # At 1.0 the sums kept a call in 16 of 46 texts, at 0.7 in 22 (three places, three samples): fewer
        # slips in digits.
        "temperature": 0.7,
        # Of a weak model five tokens in nats say little, and many a result helps that has nothing to do with
        # the text (docs/evidence.md).
        "keep_rule": "probability",
        "prune_below": PROBABILITY_PRUNE_BELOW,
        # The rule reads one placebo a call.
        "placebos": 1,
        # A call is before the text that it is scored with, and a small model hardly sees it beyond
        # so many tokens. Of a longer text the loss without a call is still that of all of it.
        "scoring_context_tokens": 1024,
    }
)
"""How a small model samples and scores, each number with its reason."""

_OF_A_SMALL_MODEL: Mapping[str, Any] = MappingProxyType(
    {
        **_ANNOTATION_BY_A_SMALL_MODEL,
        # Some eight passes over the release, in batches that two cores finish within two minutes. At the
        # paper's rate so few steps would teach nothing; at ten times the rate the model begins to call.
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
"""The numbers of `make demo` and `make run`, chosen so that two cores do the 64 texts of the demo within
minutes."""

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": {},  # the fields' defaults
        "small_model": _OF_A_SMALL_MODEL,
        # Where a model of any size is asked. To a large one the lower threshold adds places only in texts
        # that have fewer likely places than are asked, the tool's name costs it nothing, and the keep rule is no
        # worse.
        "only_look": {
            "call_prefix": _OF_A_SMALL_MODEL["call_prefix"],
            "sampling_threshold": _OF_A_SMALL_MODEL["sampling_threshold"],
            "keep_rule": _OF_A_SMALL_MODEL["keep_rule"],
            "prune_below": _OF_A_SMALL_MODEL["prune_below"],
            "placebos": _OF_A_SMALL_MODEL["placebos"],
            "document_limit": 20,
            "finetune": False,
        },
        # What the command `preview` does, as a run: a small model's samples, without a rate by chance.
        "preview": {
            **_ANNOTATION_BY_A_SMALL_MODEL,
            "document_limit": 20,
            "finetune": False,
            "placebo_sample": 0,
        },
    }
)
"""By preset, what a field holds that was left empty; what a preset does not name has the field's default."""
