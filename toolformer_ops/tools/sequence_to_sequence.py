"""Load an encoder-decoder checkpoint for a tool, as the NLLB translator and one of the QA readers do.

Only safetensors are loaded, and no code that comes with a model is run.
"""

from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolError
from toolformer_ops.language_model.identity import hub_options


def load_checkpoint(setting: str, name: str, revision: str | None, settings: Settings, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer of a folder or hub id, on the settings' device, ready to generate.

    `setting` is the environment variable that names the checkpoint, for messages.

    Raises:
        ToolError: there is none, or it is no sequence-to-sequence checkpoint with safetensors and a tokenizer.
    """
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(settings.threads)
    where = hub_options(revision or "main", settings) | {"trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **where)
        model = AutoModelForSeq2SeqLM.from_pretrained(name, use_safetensors=True, dtype=getattr(torch, dtype), **where)
    except (OSError, ValueError, KeyError, ImportError) as error:  # what transformers raises for files that do not fit
        raise ToolError(
            f"{setting}={name} (revision {revision}): expected a sequence-to-sequence checkpoint (an encoder-decoder) "
            f"with safetensors and a tokenizer, found: {str(error).splitlines()[0]}. Convert other weights with save_pretrained."
        ) from error
    return model.to(settings.device).eval(), tokenizer
