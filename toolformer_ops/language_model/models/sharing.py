"""Which models can annotate: those whose layers can share a KV cache, as far as their configuration says it.

All samples of a text share its keys and values. That needs layers that look back by full or sliding
attention, and positions that are told to the network by their numbers. Without it each token of a call would
be a pass over all tokens before it. Imports neither torch nor transformers. The comparison at load decides
(`language_model/causal_model.py`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolformer_ops.errors import ModelError

SHARED_LAYERS = {"full_attention", "sliding_attention"}
"""Of transformers' names for kinds of layers."""
BY_BIAS = {"bloom", "mpt"}
"""Types of models that know positions by a bias of their scores alone (ALiBi)."""


def require_sharing_config(file: Path) -> None:
    """`require_shared_cache` of a config.json.

    Raises:
        ModelError: also if it is no JSON object.
    """
    try:
        config = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{file}: expected a JSON object, found: {error}. Download or save the model again."
        ) from error
    require_shared_cache(str(file.parent), config)


def require_shared_cache(model: str, config: Mapping[str, Any]) -> None:
    """Refuse a model whose configuration names layers that cannot share a KV cache.

    Raises:
        ModelError: it does; the message says which.
    """
    decoder = config.get("text_config") or config
    found = sorted(set(decoder.get("layer_types") or []) - SHARED_LAYERS)
    if "local" in str(
        decoder.get("attention_types") or decoder.get("attention_layers")
    ):  # GPT-Neo masks inside its layers
        found.append("local attention")
    if decoder.get("alibi") or decoder.get("model_type") in BY_BIAS:
        found.append("positions as a bias of scores (ALiBi)")
    if found:
        raise cannot_share(model, f"layers with {', '.join(found)}")


def cannot_share(model: str, found: str) -> ModelError:
    """The error that names what was found in place of layers that share."""
    return ModelError(
        f"{model}: expected layers that can share a KV cache, found {found}. Choose a model with full or sliding "
        f"attention, such as Llama, Qwen 2 and 3, Mistral, Gemma 2 and 3, Phi 3, GPT-2 or GPT-J."
    )
