"""Load an encoder-decoder checkpoint and let it write, for the NLLB translator and for one of the QA readers.

Only safetensors are loaded, and no code that comes with a model is run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolError, disk_full
from toolformer_ops.language_model.models.identity import (
    S3,
    cache_refused,
    hub_failed,
    hub_model_missing,
    hub_options,
    local_folder,
    model_identity,
)


def load_checkpoint(
    setting: str, name: str, revision: str | None, settings: Settings, dtype: str
) -> tuple[Any, Any]:
    """Model and tokenizer of a folder, a published model or a hub id, ready to generate.

    They are on the settings' device. `setting` is the environment variable that names the checkpoint, for
    messages.

    Raises:
        ToolError: there is none, or it is no sequence-to-sequence checkpoint with safetensors and a
        tokenizer.
        ModelError: nothing is published at an address, the files are not what their stored hashes say, or a
        tokenizer brings code.
        InfrastructureError: the hub does not answer, or a disk is full.
        ConfigurationError: the local hub cache cannot be written.
        CorruptObjectError, ObjectStoreError: a model on S3 cannot be fetched.
    """
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from toolformer_ops.language_model.models.loading import require_no_own_code

    torch.set_num_threads(settings.threads)
    where = hub_options(revision or "main", settings) | {"trust_remote_code": False}
    source = str(local_folder(name, settings)) if name.startswith(S3) else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **where)
        model = AutoModelForSeq2SeqLM.from_pretrained(
            source, use_safetensors=True, dtype=getattr(torch, dtype), **where
        )
    except (
        OSError,
        ValueError,
        KeyError,
        ImportError,
    ) as error:  # what transformers raises for files that do not fit
        if not Path(name).is_dir() and (hub_failed(error) or cache_refused(error) or disk_full(error)):
            raise hub_model_missing(name, revision, error) from error
        raise ToolError(
            f"{setting}={name} (revision {revision}): expected a sequence-to-sequence checkpoint (an "
            f"encoder-decoder) with safetensors and a tokenizer, found: {str(error).splitlines()[0]}. "
            "Convert other weights with save_pretrained."
        ) from error
    require_no_own_code(tokenizer, name)
    if Path(name).is_dir():
        model_identity(name, read=True)
    return model.to(settings.device).eval(), tokenizer


def write_in_batches(
    model: Any, tokenizer: Any, encoded: Sequence[list[int]], batch: int, **options: Any
) -> list[tuple[str, bool]]:
    """What the model writes for the token ids of each text, in order, and whether it came to an end.

    Texts of similar length are in one batch. `options` go to transformers' `generate`; nothing is drawn at
    random.
    """
    import torch

    written: dict[int, tuple[str, bool]] = {}
    order = sorted(range(len(encoded)), key=lambda number: (len(encoded[number]), encoded[number]))
    for start in range(0, len(order), batch):
        numbers = order[start : start + batch]
        ids = {"input_ids": [encoded[number] for number in numbers]}
        padded = tokenizer.pad(ids, padding=True, return_tensors="pt").to(model.device)  # (text, token)
        with torch.inference_mode():
            output = model.generate(**padded, do_sample=False, **options)  # (text, new token)
        # The first token starts the decoder; NLLB's is the end token.
        finished = (output[:, 1:] == tokenizer.eos_token_id).any(dim=1).tolist()
        texts = tokenizer.batch_decode(output, skip_special_tokens=True)
        written |= dict(zip(numbers, zip(texts, finished, strict=True), strict=True))
    return [written[number] for number in range(len(encoded))]
