"""The engine: where a model would start calls, what it would call, and how much a call lowers its loss.

See Toolformer, section 2.

    tokenization.py   one encoding of a text, its windows, a tool's prompt, start token
    packing.py        passes over sequences of many texts, without padding
    columns.py        keys and values of prompts, texts and the rows that continue them
    layout.py         where the new tokens of a pass write, and what they see: numbers alone
    attention_parts.py  what attends in a network's layers: the parts of the pass under way
    attention.py      attention of one pass over a group of texts
    causal_model.py   passes through the network; log probabilities
    kv_cache.py       the KV cache: prefill, share, decode step, keep, cut; the prompts that were read
    comparison.py     a network becomes the engine's after a comparison with its own forward pass
    memory.py         budgets from the device's free memory; a batch that does not fit is halved
    decode_loop.py    prefill, share, decode step, choose, end; greedy text, for tools that ask the model
    context.py        prompt and text, computed once for all positions and samples; p(" [") at word starts
    sampling.py       calls, and the random numbers that belong to each
    losses.py         the weights of a loss, and the keep rule
    scoring.py        three losses a call
    perplexity.py     the loss of whole texts, calls disabled
    model.py          `LanguageModel`, the door to all of it

Which model it is and how it is loaded is in `models/`.

Importing this package loads no torch; `LanguageModel`, which needs it, is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

from toolformer_ops.language_model.tokenization import AnnotationPrompt

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

__all__ = ["AnnotationPrompt", "LanguageModel"]


def __getattr__(name: str) -> Any:
    if name == "LanguageModel":
        from toolformer_ops.language_model.model import LanguageModel

        return LanguageModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
