"""The engine: where a model would start calls, what it would call, and how much a call lowers its loss (Toolformer, section 2).

    identity.py       which model it is, without loading it
    loading.py        transformers: safetensors, no remote code
    tokenization.py   one encoding of a text, word starts, start token
    prompts.py        a tool's prompt and its slot
    windows.py        texts longer than the model's window
    causal_model.py   passes through the network, log probabilities
    packing.py        passes over sequences of many texts, without padding
    kv_cache.py       the KV cache: prompt, texts, and each sequence's own tokens
    attention.py      attention of one pass over a group of texts
    decode_loop.py    prefill, share, decode step, choose, end
    memory.py         budgets from the device's free memory; a batch that does not fit is halved
    context.py        prompt and text, computed once for all positions and samples
    positions.py      p(" [") at word starts
    sampling.py       calls, and the random numbers that belong to each
    losses.py         the weights of a loss, and the keep rule
    scoring.py        three losses a call
    perplexity.py     the loss of whole texts, calls disabled
    generation.py     greedy text, for tools that ask the model
    model.py          `LanguageModel`, the door to all of it
    publishing.py     a model's folder goes to S3
    conversion.py     GGUF to safetensors, for the demo's model

Importing this package loads no torch; the names that need it are loaded when they are first used.
"""

from typing import TYPE_CHECKING, Any

from toolformer_ops.language_model.identity import model_identity
from toolformer_ops.language_model.prompts import AnnotationPrompt

if TYPE_CHECKING:
    from toolformer_ops.language_model.conversion import convert_gguf
    from toolformer_ops.language_model.model import LanguageModel
    from toolformer_ops.language_model.scoring import ScoredToken

__all__ = ["AnnotationPrompt", "LanguageModel", "ScoredToken", "convert_gguf", "model_identity"]

_LOADED_ON_USE = {"LanguageModel": "model", "ScoredToken": "scoring", "convert_gguf": "conversion"}


def __getattr__(name: str) -> Any:
    if name in _LOADED_ON_USE:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_LOADED_ON_USE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
