"""LoRA (Hu et al., 2021): low-rank adapters are trained beside frozen weights, and added to them at the end.

An adapter of rank r beside a layer W adds alpha / r * B A, where A (r, inputs) is drawn at random and B
(outputs, r) begins at zero, so that the first step starts from the model itself. Optimiser and gradients then
take 16 bytes for each of the adapters' weights, some 0.5 % of all, and the frozen weights take two bytes each
on a GPU with bfloat16. What is published is `W + alpha / r * B A` in float32, a model as any other. peft
makes, saves and merges the adapters; the module does not train them (`training.py`).
"""

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, UsageError, lacking_package
from toolformer_ops.language_model.models.identity import model_config
from toolformer_ops.runs.choices import FinetuningChoices

ALL_LINEAR = "all-linear"
"""peft's name for every linear layer but the output projection."""
WIDTHS = ("hidden_size", "n_embd", "d_model")
"""Names under which a config.json says how many numbers a token has between layers."""


def require_trainable(settings: Settings, choices: FinetuningChoices, model: str) -> None:
    """Refuse adapters that the model cannot have, by its config.json alone: no weights are fetched for it.

    Raises:
        UsageError: the rank is above the model's width.
        ModelError: there is no such model. Else as `model_config`.
    """
    if choices.finetune_method != "lora":
        return
    require_rank(choices, model_config(model, settings), model)


def require_installed(choices: FinetuningChoices) -> None:
    """Refuse a training whose packages are not there.

    Raises:
        ConfigurationError: names the package, its extra, and the choice that does without it.
    """
    without = {}
    if choices.finetune_method == "lora":
        without["peft"] = "finetune_method full"
    if choices.finetune_optimizer == "adamw_8bit":
        without["bitsandbytes"] = "finetune_optimizer adamw"
    for module, choice in without.items():
        if importlib.util.find_spec(module) is None:
            lacking = lacking_package(ModuleNotFoundError(name=module))
            raise ConfigurationError(f"{lacking} Or choose {choice}.")


def require_rank(choices: FinetuningChoices, config: Mapping[str, Any], model: str) -> None:
    """Refuse a rank above the width that a config.json names; without a width nothing is refused.

    Raises:
        UsageError: it is above the width.
    """
    decoder = {**config, **(config.get("text_config") or {})}
    width = next((decoder[name] for name in WIDTHS if isinstance(decoder.get(name), int)), None)
    if width is not None and choices.finetune_lora_rank > width:
        raise UsageError(
            f"finetune_lora_rank: expected at most {width}, the width of {model}, found "
            f"{choices.finetune_lora_rank}. Nothing was trained. Usual ranks are 8 to 64."
        )


def linear_layers(network: Any) -> dict[str, Any]:
    """The linear layers of a network by their full names, without the output projection."""
    import torch
    from transformers.pytorch_utils import Conv1D

    head = network.get_output_embeddings()
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    }


def adapter_weights(network: Any, rank: int) -> int:
    """How many weights adapters of this rank beside all linear layers have."""
    return sum(rank * sum(layer.weight.shape) for layer in linear_layers(network).values())


def with_adapters(network: Any, choices: FinetuningChoices, model: str) -> Any:
    """The network with adapters that are trained and weights that are not, as a model of peft.

    The adapters are in float32, and equal in every process of a training and at each of its starts.

    Raises:
        UsageError: the network has no linear layer, or the rank is above its width.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    # 1. An adapter for each linear layer.
    require_rank(choices, network.config.to_dict(), model)
    if not linear_layers(network):
        raise UsageError(
            f"finetune_method lora: expected linear layers in {model}, found none. Choose finetune_method "
            "full."
        )
    config = LoraConfig(
        r=choices.finetune_lora_rank,
        lora_alpha=choices.lora_alpha,
        target_modules=ALL_LINEAR,
        lora_dropout=0.0,
        bias="none",
    )
    # 2. A is drawn by the seed, whatever was drawn before.
    devices = [network.device] if network.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(choices.seed)
        adapted = get_peft_model(network, config)
    # 3. A checkpoint holds the adapters alone. Without this peft would ask the hub whether the vocabulary
    #    grew.
    save = functools.partial(adapted.save_pretrained, save_embedding_layers=False)
    adapted.save_pretrained = save  # type: ignore[method-assign]
    return adapted


def merged(network: Any, adapters: Path) -> Any:
    """The network, whose weights are float32, with the adapters in a folder added to them.

    It has no adapters any more.
    """
    from peft import PeftModel

    return PeftModel.from_pretrained(network, str(adapters)).merge_and_unload()


def described(choices: FinetuningChoices) -> str:
    """What is trained and how, in words."""
    by = "Adam's moments in 8 bits" if choices.finetune_optimizer == "adamw_8bit" else "AdamW"
    if choices.finetune_method == "full":
        return f"all weights, by {by}"
    return (
        f"LoRA adapters of rank {choices.finetune_lora_rank} and alpha {choices.lora_alpha} beside all linear "
        f"layers of the decoder, by {by}, merged into the weights"
    )
