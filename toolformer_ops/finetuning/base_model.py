"""The model that a training starts from: its number format, and whether its training fits on the GPU."""

import copy
import math
import os
from dataclasses import dataclass
from typing import Any

import torch

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError
from toolformer_ops.finetuning.adapter import adapter_weights, described
from toolformer_ops.language_model.devices import GIB
from toolformer_ops.language_model.models.loading import load_network
from toolformer_ops.language_model.models.sharing import constant_positions
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.runs.choices import FinetuningChoices

MARKERS = (" [", "]", " ->")
"""What begins, ends and divides a call (`call_syntax.py`)."""
BYTES_A_TRAINED_WEIGHT = 16
"""Bytes of a weight, its gradient and Adam's two moments, in float32."""
BYTES_A_WEIGHT_8BIT = 10
"""Bytes of a weight with moments in 8 bits. Those of embeddings stay in float32, as transformers sets
bitsandbytes up."""
PROCESSES_VARIABLE = "WORLD_SIZE"
"""Set by `accelerate launch` in each of the processes that it starts."""


@dataclass(frozen=True)
class BaseModel:
    """The model that a training starts from."""

    network: Any
    tokenizer: Any
    tokenization: Tokenization
    window: int
    """Longest sequence, in tokens, that the model was made for."""
    adapted: Any = None
    """The network as a model of peft, whose adapters alone are trained; None if all weights are."""

    @property
    def trained(self) -> Any:
        """What the Trainer is given."""
        return self.network if self.adapted is None else self.adapted


def computes_in_bfloat16(settings: Settings) -> bool:
    """Whether forward passes compute in bfloat16: as the settings say, else on GPUs that have it."""
    if settings.training_dtype != "auto":
        return settings.training_dtype == "bfloat16"
    return settings.device != "cpu" and torch.cuda.is_bf16_supported()


def weights_format(settings: Settings, choices: FinetuningChoices) -> str:
    """The number format of the weights beside which adapters are trained, or that are trained themselves.

    The optimiser's small steps are lost in narrower weights than float32. Weights that stay as they are can
    be in the format in which the passes compute.
    """
    is_frozen = choices.finetune_method == "lora"
    return "bfloat16" if is_frozen and computes_in_bfloat16(settings) else "float32"


def load_base_model(
    settings: Settings,
    path_or_hub_id: str,
    revision: str | None,
    *,
    sharded: bool = False,
    dtype: str = "float32",
) -> BaseModel:
    """Load the model that is trained; `dtype` is that of its weights.

    `sharded`: the weights are divided among processes as they are loaded, of which the first alone reads
    them. transformers does that while `TrainingArguments` that name DeepSpeed's ZeRO-3 exist
    (`training_arguments`).

    Raises:
        ModelError: it is not there, or its vocabulary cannot write a call.
    """
    device = settings.device
    if sharded:
        device = "cpu"  # placeholders, which DeepSpeed places
    elif device != "cpu" and PROCESSES_VARIABLE in os.environ:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # of several processes each has one GPU
    network, tokenizer, _ = load_network(path_or_hub_id, revision, dtype, device, settings.threads, settings)
    # The engine's tokenization sets the tokenizer up for itself; the tokenizer that is published stays as it
    # was.
    tokenization = Tokenization(copy.deepcopy(tokenizer))
    for marker in MARKERS:
        if (read_back := tokenization.decode(tokenization.continuation(marker))) != marker:
            raise ModelError(
                f"{path_or_hub_id}: expected a vocabulary that can write {marker!r} for the calls, found "
                f"that it reads back as {read_back!r}. Nothing was trained. Choose a model whose tokenizer "
                "knows every byte."
            )
    config = network.config
    lengths = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    positions = next((value for value in lengths if isinstance(value, int) and value > 0), 10**9)
    constant = constant_positions(getattr(config, "rope_parameters", None))
    positions = min(positions, constant or positions)
    return BaseModel(network, tokenizer, tokenization, positions)


def require_training_memory(settings: Settings, base: BaseModel, choices: FinetuningChoices) -> None:
    """Refuse a training whose state alone does not fit on the one GPU that holds it.

    Raises:
        ModelError: the message has the bytes needed, the bytes free, and what would fit.
    """
    device = torch.device(base.network.device)
    if device.type != "cuda":
        return
    needed, total = training_bytes(base, choices), torch.cuda.mem_get_info(device)[1]
    if needed <= total:
        return
    weights = sum(parameter.numel() for parameter in base.network.parameters())
    remedies = []
    if choices.finetune_method == "full":
        # 1. Choices with which this GPU holds it.
        in_8_bits = choices.model_copy(update={"finetune_optimizer": "adamw_8bit"})
        frozen = weights * (2 if computes_in_bfloat16(settings) else 4)
        adapters = adapter_weights(base.network, choices.finetune_lora_rank) * BYTES_A_TRAINED_WEIGHT
        for choice, size in (
            ("finetune_optimizer adamw_8bit", training_bytes(base, in_8_bits)),
            ("finetune_method lora", frozen + adapters),
        ):
            if size <= min(total, needed - 1):
                remedies.append(f"{choice} ({size / GIB:.0f} GiB)")
        # 2. Other GPUs.
        spread = math.ceil(weights * BYTES_A_TRAINED_WEIGHT / total) + 1
        remedies.append(f"{spread} GPUs or more with adamw, over which DeepSpeed spreads it")
    raise ModelError(
        f"expected a GPU with {needed / GIB:.0f} GiB for the training of {weights / 1e9:.1f} billion weights "
        f"({described(choices)}), found {total / GIB:.0f} GiB. "
        f"Nothing was trained. Take {''.join(f'{remedy}, ' for remedy in remedies)}a larger GPU, or a "
        "smaller model."
    )


def training_bytes(base: BaseModel, choices: FinetuningChoices) -> int:
    """Bytes of weights, gradients and moments; what a forward pass takes comes to that."""
    embeddings = base.network.get_input_embeddings().weight
    needed = 0
    for weight in base.trained.parameters():
        if not weight.requires_grad:
            size = weight.element_size()
        elif choices.finetune_optimizer == "adamw_8bit" and weight is not embeddings:
            size = BYTES_A_WEIGHT_8BIT
        else:
            size = BYTES_A_TRAINED_WEIGHT
        needed += weight.numel() * size
    return needed
