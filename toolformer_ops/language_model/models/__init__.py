"""Models as files: which one it is, where it is, and how it is loaded or published.

    identity.py     a model's name, by its content or its pinned revision, without loading it
    loading.py      network and tokenizer, by transformers: safetensors, no remote code
    publishing.py   a model's folder goes to S3
    late_imports.py what of transformers is left out until it is used
    conversion.py   GGUF to safetensors, for the demo's model

Importing this package loads no torch.
"""

from toolformer_ops.language_model.models.identity import model_identity

__all__ = ["model_identity"]
