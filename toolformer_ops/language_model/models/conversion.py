"""Turn a GGUF file into a folder that `LanguageModel.load` takes: safetensors, configuration, tokenizer.

Done once: reading GGUF takes 20 s for a model of 135M parameters, the folder 0.1 s. The weights are those of
the file, its quantisation undone; the folder is written aside and renamed, so it is whole or absent.
"""

import logging
import os
import shutil
import struct
from pathlib import Path

from toolformer_ops.errors import ModelError

logger = logging.getLogger(__name__)


def convert_gguf(source: Path, target: Path) -> Path:
    """Write the model of a GGUF file to a new folder as float32 safetensors; returns the folder.

    Raises:
        ModelError: there is no such file, or it holds no causal language model that transformers can read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    if not source.is_file():
        raise ModelError(
            f"expected a GGUF file, found nothing at {source}. Install the package that brings it, or give "
            "another."
        )
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        network = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, struct.error) as error:
        raise ModelError(
            f"{source}: expected a GGUF file of a causal language model, found: {error}"
        ) from error
    # The tensors are plain float32 by now; what still says "gguf" would make `from_pretrained` look for the
    # file.
    for name in ("hf_quantizer", "quantization_method"):
        if hasattr(network, name):
            delattr(network, name)
    setattr(network, "is_quantized", False)  # noqa: B010 (no declared attribute)
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    aside = target.with_name(f"{target.name}.part-{os.getpid()}")
    try:
        network.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    logger.info("converted %s to safetensors in %s", source.name, target)
    return target
