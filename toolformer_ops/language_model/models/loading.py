"""Load network and tokenizer with transformers.

It loads safetensors only, no remote code, and hub models only at a pinned revision.
"""

import json
import logging
import math
from pathlib import Path
from typing import Any

import torch

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import ModelError, ToolformerError
from toolformer_ops.language_model.devices import GIB, free_memory, gpus, require_gpu, require_own_memory
from toolformer_ops.language_model.models.identity import (
    hub_model_missing,
    hub_options,
    local_folder,
    model_identity,
    require_hub_revision,
)
from toolformer_ops.language_model.models.late_imports import imported_when_used

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


_CANNOT_BE_READ = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,  # of tokenizers whose vocabulary is not there: expected str, found NoneType
    ValueError,
)
"""What transformers raises for files that are missing, of another kind, or read by a package that is not
installed."""


def load_network(
    path_or_hub_id: str,
    revision: str | None,
    dtype: str,
    device: str,
    threads: int,
    settings: Settings | None = None,
) -> tuple[Any, Any, str]:
    """Network, tokenizer and identity, which is that of the bytes on the disk.

    `settings` are those that `model_identity` takes.

    Raises:
        ModelError: there is no such model, its files are not what their stored hashes say, or dtype or device
        cannot be used.
        InfrastructureError: the hub does not answer, there is no GPU, or a disk is full.
        CorruptObjectError, ObjectStoreError: a model on S3 cannot be fetched.
    """
    identity = model_identity(path_or_hub_id, revision, read=True, settings=settings)
    network = load_weights(path_or_hub_id, revision, dtype, device, threads, settings)
    return network, load_tokenizer(path_or_hub_id, revision, settings), identity


def load_weights(
    path_or_hub_id: str,
    revision: str | None,
    dtype: str,
    device: str,
    threads: int,
    settings: Settings | None = None,
) -> Any:
    """The network alone.

    Its weights go from their files to the device, so that main memory holds a few tensors of a GPU's network.

    Raises:
        ModelError: there is no such model, dtype or device cannot be used, or the weights do not fit on the
        GPUs: that is found
            before any is read.
        ConfigurationError: torch cannot use this machine's driver.
        InfrastructureError: the hub does not answer, or there is no GPU, or other processes fill it.
    """
    from safetensors import SafetensorError

    with imported_when_used(
        "scipy.optimize:linear_sum_assignment"
    ):  # for the loss of networks that detect objects
        import transformers.modeling_utils  # noqa: F401
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    if dtype not in DTYPES:
        raise ModelError(f"expected a dtype of {', '.join(DTYPES)}, found {dtype!r}.")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"expected a device such as cpu or cuda:0, found {device!r}.") from error
    if wanted.type == "cuda":
        require_gpu(device)
    torch.set_float32_matmul_precision("highest")  # float32 is what decides: no TF32
    if wanted.type == "cpu":
        torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    source, pinned = _source(path_or_hub_id, revision, settings)
    placed: dict[str, Any] = {}
    if wanted.type == "cuda":
        is_spread = device == "cuda" and (settings or load_settings()).model_parallel != "off"
        placed["device_map"] = "balanced" if is_spread else device
        _require_room(source, pinned, dtype, device, is_spread=is_spread)
    loaded: Any
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **placed,
            **pinned,
        )
    except (*_CANNOT_BE_READ, SafetensorError) as error:
        raise _cannot_be_loaded(source, pinned, error) from error
    network, report = loaded
    if lacking := sorted(
        report["missing_keys"]
    ):  # transformers would continue with random numbers in their place
        raise ModelError(
            f"{source}: expected all weights of a {type(network).__name__}, found none for {len(lacking)} of "
            f"them, such as {lacking[0]}. Save or download the model again."
        )
    if getattr(network.config, "auto_map", None):
        logger.warning(
            "%s: config.json names its own code (auto_map), which is never run; it is a %s of transformers",
            source, type(network).__name__,
        )  # fmt: skip
    if placed.get("device_map") != "balanced":
        return network
    _require_on_gpus(network, source)
    return answer_on_first_device(network)


def _require_room(source: str, pinned: dict[str, Any], dtype: str, device: str, *, is_spread: bool) -> None:
    """Refuse weights that are larger than what is free on the GPUs.

    A hub model that is not downloaded yet is let through.

    Raises:
        ModelError: bytes needed, bytes there, and what to do.
        InfrastructureError: other processes hold the memory.
    """
    from huggingface_hub import try_to_load_from_cache
    from safetensors import SafetensorError, safe_open

    # 1. What the weights take, from the headers of the model's safetensors.
    config = try_to_load_from_cache(source, "config.json", revision=pinned["revision"]) if pinned else None
    folder = Path(config).parent if isinstance(config, str) else Path(source)
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    names = {single.name} if single.is_file() else set()
    needed = 0
    try:
        if not names and index.is_file():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        for name in names:
            with safe_open(folder / name, framework="pt") as file:
                numbers = sum(math.prod(file.get_slice(tensor).get_shape()) for tensor in file.keys())  # noqa: SIM118
                needed += numbers * DTYPES[dtype].itemsize
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _cannot_be_loaded(source, pinned, error) from error
    # 2. What is free.
    numbers_of_gpus = range(torch.cuda.device_count()) if is_spread else (torch.device(device).index or 0,)
    free = sum(free_memory(torch.device("cuda", number)) for number in numbers_of_gpus)
    if needed <= free:
        return
    require_own_memory(f"the weights of {source}")
    several = (
        "Give the pod more GPUs (nvidia.com/gpu in gpu.yaml)"
        if is_spread
        else "Spread it over several GPUs (nvidia.com/gpu in gpu.yaml, which sets TOOLFORMER_MODEL_PARALLEL=layers)"
    )
    raise ModelError(
        f"{source}: expected {needed / GIB:.1f} GiB of GPU memory for its weights in {dtype}, found "
        f"{free / GIB:.1f} GiB to load them into ({', '.join(map(str, gpus()))}). {several}, or choose a "
        f"node with larger GPUs{', or bfloat16' if dtype == 'float32' else ''}."
    )


def answer_on_first_device(network: Any) -> Any:
    """Let decoder and output projection of a spread network answer if they take their input.

    accelerate has spread the layers over devices. accelerate moves what a layer reads to the layer's device.
    Only the KV cache stays with its layer.
    """
    from accelerate.utils import send_to_device

    first = network.get_input_embeddings().weight.device
    for module in (network.base_model, network.get_output_embeddings()):
        module.register_forward_hook(lambda _module, _inputs, output: send_to_device(output, first))
    return network


def _require_on_gpus(network: Any, source: str) -> None:
    """Refuse a network of which accelerate left a part to the CPU or the disk.

    Each token would bring that part over again.
    """
    elsewhere = sorted(
        name for name, place in getattr(network, "hf_device_map", {}).items() if place in ("cpu", "disk")
    )
    if elsewhere:
        require_own_memory(f"the weights of {source}")
        raise ModelError(
            f"{source}: expected GPUs that hold all of its weights, found "
            f"{', '.join(map(str, gpus())) or 'none'}, without room for {len(elsewhere)} of its parts, such "
            f"as {elsewhere[0]}. Give the process more GPUs (nvidia.com/gpu in gpu.yaml), or use bfloat16."
        )


def load_tokenizer(path_or_hub_id: str, revision: str | None, settings: Settings | None = None) -> Any:
    """The tokenizer alone.

    Raises:
        ModelError: there is no such model, or its tokenizer is its own code.
    """
    from transformers import AutoTokenizer

    source, pinned = _source(path_or_hub_id, revision, settings)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **pinned)
    except _CANNOT_BE_READ as error:
        raise _cannot_be_loaded(source, pinned, error) from error
    require_no_own_code(tokenizer, path_or_hub_id)
    return tokenizer


def require_no_own_code(tokenizer: Any, source: str) -> None:
    """Refuse a tokenizer that names its own code.

    transformers has loaded another class instead, without a word.

    Raises:
        ModelError: `auto_map` in tokenizer_config.json names a class.
    """
    classes = tokenizer.init_kwargs.get("auto_map") or {}
    own = classes.get("AutoTokenizer") if isinstance(classes, dict) else classes  # a list is the older form
    if own:
        name = own if isinstance(own, str) else next((part for part in own if part), "")
        raise ModelError(
            f"{source}: expected a tokenizer of transformers, found auto_map in tokenizer_config.json, with "
            f"its own code ({name}) that is never run. If {type(tokenizer).__name__} does the same, remove "
            "auto_map; else take another model."
        )


def _source(
    path_or_hub_id: str, revision: str | None, settings: Settings | None
) -> tuple[str, dict[str, Any]]:
    """A folder, or a hub id with its pinned revision, as transformers takes them.

    With a hub id comes whether the hub may be asked.

    Raises:
        ModelError: a hub id without a revision.
    """
    folder = local_folder(path_or_hub_id, settings)
    if folder is not None:
        return str(folder), {}
    return path_or_hub_id, hub_options(require_hub_revision(path_or_hub_id, revision), settings)


def _cannot_be_loaded(source: str, pinned: dict[str, Any], error: Exception) -> ToolformerError:
    if isinstance(error, torch.OutOfMemoryError):
        require_own_memory(f"the weights of {source}")
        return ModelError(
            f"{source}: expected a GPU that holds all of its weights, found too little memory: "
            f"{str(error).splitlines()[0]} Give the process a larger GPU, or several (nvidia.com/gpu in "
            "gpu.yaml), or use bfloat16."
        )
    if pinned:
        return hub_model_missing(source, pinned["revision"], error)
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelError(
        f"{source}: expected a causal language model that transformers can load without remote code, found: "
        f"{reason}"
    )
