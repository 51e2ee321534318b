"""Which models can annotate: those whose layers can share a KV cache, as far as config.json tells.

All samples of a text share its keys and values. That needs layers that look back by full or sliding
attention, and positions that the network is given as numbers. Without that each token of a call would need a
pass over all tokens before it. Imports neither torch nor transformers. What decides is the comparison when
the model is loaded (`language_model/comparison.py`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolformer_ops.errors import ModelError

SHARED_LAYERS = {"full_attention", "sliding_attention"}
"""The kinds of layers, as transformers names them."""
_ALIBI = "positions as a bias of scores (ALiBi)"
_RECURRENT = "recurrent layers, which carry a state from token to token"
_IN_THE_LAYER = "attention that transformers computes inside the layer and not by its attention interface"
REASONS = {
    "bloom": _ALIBI,
    "mpt": _ALIBI,
    "rwkv": _RECURRENT,
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
    "falcon_mamba": _RECURRENT,
    "falcon_h1": _RECURRENT,
    "recurrent_gemma": _RECURRENT,
    "jamba": _RECURRENT,
    "bamba": _RECURRENT,
    "zamba": _RECURRENT,
    "zamba2": _RECURRENT,
    "xlstm": _RECURRENT,
    "falcon": _IN_THE_LAYER,
    "xlnet": "attention in both directions, over an order of the tokens that is drawn",
    "gpt_oss": "attention with sinks, a score that belongs to no token",
    "xglm": _IN_THE_LAYER,
}
"""By the type of a model, why its layers cannot share a KV cache."""


def require_sharing_config(file: Path) -> None:
    """Refuse the model of a config.json, as `require_shared_cache` does.

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
        ModelError: it names such layers; the message says which.
    """
    decoder = config.get("text_config") or config
    reasons = []
    if kinds := sorted(set(decoder.get("layer_types") or []) - SHARED_LAYERS):
        reasons.append(f"layers with {', '.join(kinds)}")
    # GPT-Neo masks inside its layers.
    if "local" in str(decoder.get("attention_types") or decoder.get("attention_layers")):
        reasons.append("local attention")
    if decoder.get("alibi"):
        reasons.append(_ALIBI)
    elif reason := REASONS.get(decoder.get("model_type", "")):
        reasons.append(reason)
    # DeepSeek V2 and V3, MiniCPM 3: keys have a part with positions beside the part that they share with
    # values.
    key_width = int(decoder.get("qk_nope_head_dim") or 0) + int(decoder.get("qk_rope_head_dim") or 0)
    if key_width and key_width != decoder.get("v_head_dim"):
        reasons.append("latent attention, whose values are narrower than its keys")
    if reasons:
        raise cannot_share(model, " and ".join(reasons))


def constant_positions(rope: Mapping[str, Any] | None) -> int | None:
    """The longest sequence, in tokens, whose rotary positions do not depend on what else a pass holds.

    None: there is no such limit. LongRoPE (Phi 3 with a long window) has one set of factors for passes whose
    longest sequence is within the length of pre-training, and another for longer ones: a short text beside a
    long one would have other positions than alone. `rope` is `rope_parameters` of a configuration, by kind of
    layer in some models.
    """
    lengths = []
    for parameters in (rope, *(rope or {}).values()):
        if not isinstance(parameters, Mapping) or parameters.get("rope_type") != "longrope":
            continue
        if parameters.get("short_factor") != parameters.get("long_factor"):
            lengths.append(int(parameters["original_max_position_embeddings"]))
    return min(lengths, default=None)


def cannot_share(model: str, obstacle: str) -> ModelError:
    """The error that names what the model has instead of layers that share a KV cache."""
    return ModelError(
        f"{model}: expected layers that can share a KV cache, found {obstacle}. Choose a model with full or "
        "sliding attention, such as Llama, Qwen 2 and 3, Mistral, Gemma 2 and 3, Phi 3, GPT-2 or GPT-J."
    )
