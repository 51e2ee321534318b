"""The engine: where a model would start calls, what it would call, and how much a call lowers its loss (Toolformer, section 2).

    identity.py       which model it is, without loading it
    loading.py        transformers: safetensors, no remote code
    tokenization.py   one encoding of a text, word starts, start token
    prompts.py        a tool's prompt and its slot
    windows.py        texts longer than the model's window
    causal_model.py   hidden states, log probabilities
    packing.py        passes over sequences of many texts, without padding
    branches.py       a cache that branches
    trees.py          a text's rows while they are decoded
    tree_attention.py attention of many texts in one pass, text by text
    tree_decoding.py  passes: one token more a row, or several more a text
    rows.py           texts that are written side by side, for decoding with tools
    memory.py         budgets from the device's free memory; a batch that does not fit is halved
    context.py        prompt and text, computed once for all positions and samples
    positions.py      p(" [") at word starts
    draws.py          random numbers that belong to a sample
    samples.py        one sampled call while it grows
    sampling.py       calls
    losses.py         the weights of a loss, and the keep rule
    scoring.py        three losses a call
    perplexity.py     the loss of whole texts, calls disabled
    generation.py     greedy text, for tools that ask the model
    model.py          `LanguageModel`, the door to all of it
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
