"""Load network and tokenizer with transformers: safetensors only, no remote code, hub models only at a pinned revision."""

from typing import Any

import torch

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, NoDeviceError, ToolformerError
from toolformer_ops.language_model.identity import (
    hub_model_missing,
    hub_options,
    local_folder,
    model_identity,
    require_hub_revision,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_network(
    path_or_hub_id: str,
    revision: str | None,
    dtype: str,
    device: str,
    threads: int,
    settings: Settings | None = None,
) -> tuple[Any, Any, str]:
    """Network, tokenizer and identity, which is that of the bytes on the disk; `settings` as for `model_identity`.

    Raises:
        ModelError: there is no such model, its files are not what their stored hashes say, or dtype or device cannot be used.
        ModelHubError, NoDeviceError: the hub does not answer, or no GPU is there.
        CorruptObjectError, ObjectStoreError, CacheFullError: a model on S3 cannot be fetched.
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

    Raises:
        ModelError: there is no such model, or dtype or device cannot be used.
        ModelHubError, NoDeviceError: the hub does not answer, or no GPU is there.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    if dtype not in DTYPES:
        raise ModelError(f"expected a dtype of {', '.join(DTYPES)}, found {dtype!r}.")
    _check_device(device)
    if torch.device(device).type == "cpu":
        torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    source, pinned = _source(path_or_hub_id, revision, settings)
    loaded: Any
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **pinned,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _cannot_be_loaded(source, pinned, error) from error
    network, report = loaded
    if lacking := sorted(report["missing_keys"]):  # transformers would go on with random numbers in their place
        raise ModelError(
            f"{source}: expected all weights of a {type(network).__name__}, found none for {len(lacking)} of them, such as "
            f"{lacking[0]}. Save or download the model again."
        )
    return network.to(device)


def load_tokenizer(path_or_hub_id: str, revision: str | None, settings: Settings | None = None) -> Any:
    """The tokenizer alone.

    Raises:
        ModelError: there is no such model.
    """
    from transformers import AutoTokenizer

    source, pinned = _source(path_or_hub_id, revision, settings)
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **pinned)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _cannot_be_loaded(source, pinned, error) from error


def _source(path_or_hub_id: str, revision: str | None, settings: Settings | None) -> tuple[str, dict[str, Any]]:
    """A folder, or a hub id with its pinned revision and whether the hub may be asked, as transformers takes them.

    Raises:
        ModelError: a hub id without a revision.
    """
    folder = local_folder(path_or_hub_id, settings)
    if folder is not None:
        return str(folder), {}
    return path_or_hub_id, hub_options(require_hub_revision(path_or_hub_id, revision), settings)


def _cannot_be_loaded(source: str, pinned: dict[str, Any], error: Exception) -> ToolformerError:
    if pinned:
        return hub_model_missing(source, pinned["revision"], error)
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelError(
        f"{source}: expected a causal language model that transformers can load without remote code, found: {reason}"
    )


def _check_device(device: str) -> None:
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"expected a device such as cpu or cuda:0, found {device!r}.") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise NoDeviceError(
            f"expected a GPU for device {device!r}, found none. Set TOOLFORMER_DEVICE=cpu, or run where a GPU is."
        )
