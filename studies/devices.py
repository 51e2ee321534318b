"""How the processes of a study share a device, and in which number format they compute.

On a GPU weights are float32 and their products TF32, which is off by some thousandths of a nat (`docs/gpu.md`,
Verification); a training computes in bfloat16 as the factory's does. On a CPU all is float32. A small model
leaves a GPU idle between its launches, so several seeds run side by side, each within its share of the memory.
"""

from typing import TYPE_CHECKING, TypeVar

from toolformer_ops.config import Settings

if TYPE_CHECKING:
    from toolformer_ops.decoding.model import WritingModel
    from toolformer_ops.language_model.model import LanguageModel

USABLE = 0.9
"""The share of a GPU's memory that all processes may take together; the rest is for their contexts."""

Loaded = TypeVar("Loaded")


def study_settings(settings: Settings) -> Settings:
    """The settings with float32 weights, and one thread beside a GPU."""
    if settings.device == "cpu":
        return settings
    return settings.model_copy(update={"dtype": "float32", "threads": 1})


def share_device(settings: Settings, processes: int) -> None:
    """Limit this process to its share of the GPU; nothing happens on a CPU."""
    if settings.device == "cpu":
        return
    import torch

    torch.cuda.set_per_process_memory_fraction(USABLE / processes)


def load_to_score(settings: Settings, model: str) -> "LanguageModel":
    """The model for annotation and losses."""
    from toolformer_ops.runs.models import load_scoring_model

    loaded = load_scoring_model(settings, model)
    _compute_in_tf32(settings)
    return loaded


def load_to_write(settings: Settings, model: str, tools: tuple[str, ...]) -> "WritingModel":
    """The model with the tools that it may call."""
    from toolformer_ops.decoding.model import WritingModel

    loaded = WritingModel.load(settings, model, tools=tools)
    _compute_in_tf32(settings)
    return loaded


def free_device(settings: Settings) -> None:
    """Return what models that are gone held of the GPU's memory."""
    if settings.device == "cpu":
        return
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _compute_in_tf32(settings: Settings) -> None:
    """Loading a model asks for full float32; this is asked for again."""
    if settings.device != "cpu":
        import torch

        torch.set_float32_matmul_precision("high")
