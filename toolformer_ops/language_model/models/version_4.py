"""A model folder that transformers 4 reads as transformers 5 does, which wrote it.

Version 5 renamed what decides the numbers: `rope_parameters` holds what were `rope_theta`, `rope_scaling` and
the like, `dtype` was `torch_dtype`, and a fast tokenizer's class is `TokenizersBackend`. Version 4 ignores
the names that it does not know and takes its defaults: 4.57.6 read a model with rope_theta 10,000 for
100,000, and its loss was 2.66 for 2.42 nats a token. So both names are written; version 5 reads the old ones
as it reads its own (transformers 5, configuration_utils.py and modeling_rope_utils.py). Trainers, servers and
converters of other projects read the old names, too.

Changes JSON files alone, and imports no transformers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
_OWN_NAMES = {
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
}
"""Model types whose fields version 4 calls otherwise."""


def write_for_version_4(folder: Path) -> None:
    """Write transformers 4's names beside those of 5 into the configurations of a model and its tokenizer.

    Twice changes nothing more.
    """
    _change(folder / "config.json", _configuration)
    _change(folder / "tokenizer_config.json", _tokenizer)


def _change(file: Path, fields: Any) -> None:
    configuration = json.loads(file.read_text(encoding="utf-8"))
    changed = fields(configuration)
    file.write_text(json.dumps(changed, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _configuration(configuration: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(configuration)
    if "dtype" in configuration:
        changed["torch_dtype"] = configuration["dtype"]
    rope = configuration.get("rope_parameters") or {}
    # Some models have other parameters in layers with a window (Gemma 3).
    is_by_layer = any(isinstance(parameters, Mapping) for parameters in rope.values())
    main = rope.get(_FULL) or {} if is_by_layer else rope
    changed |= _rope(main, _OWN_NAMES.get(configuration.get("model_type", ""), {}))
    if is_by_layer and (local := rope.get(_SLIDING)):
        changed["rope_local_base_freq"] = local["rope_theta"]
    return changed


def _rope(parameters: Mapping[str, Any], own_names: Mapping[str, str]) -> dict[str, Any]:
    """The fields of version 4 for rotary positions; scaling is a record of its own there."""
    if not parameters:
        return {}
    fields: dict[str, Any] = {}
    scaling = dict(parameters)
    for name in ("rope_theta", "partial_rotary_factor"):
        if (value := scaling.pop(name, None)) is not None:
            fields[own_names.get(name, name)] = value
    fields["rope_scaling"] = None if scaling.get("rope_type", "default") == "default" else scaling
    return fields


def _tokenizer(configuration: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(configuration)
    if configuration.get("tokenizer_class") == "TokenizersBackend":
        changed["tokenizer_class"] = "PreTrainedTokenizerFast"
    # A list in version 5, where version 4 wants names with tokens: it knows a list by another name.
    tokens = configuration.get("extra_special_tokens")
    if isinstance(tokens, list):
        del changed["extra_special_tokens"]
        changed["additional_special_tokens"] = tokens
    return changed
