"""From what a user types to the choices of a run, checked before anything starts.

The numbers of `make demo` and `make run` are those of the preset `small_model` (`runs/presets.py`), each with
its reason there. The method is the paper's; the numbers are smaller.

`scoring_context_tokens` stays empty (the whole text), which is best here: the texts are short. Of the 133
calls sampled for the 46 sums, 19 save 0.5 nats with the whole text, and also with 64 or 32 tokens before the
call; with 16 tokens 16, with 8 tokens 14 (SmolLM2-135M, float32, 2026-11-21, the preset's numbers). With
`prune_below` at its default the kept calls are the same, every one, and 74 of the 133 are not scored to the
end.
"""

from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, ModelError, UsageError
from toolformer_ops.language_model.models.identity import S3
from toolformer_ops.local.demo.corpus import OWN_KINDS, demo_size
from toolformer_ops.local.demo.model import DEMO, demo_model_path
from toolformer_ops.storage.corpora.addresses import normal_uri
from toolformer_ops.storage.corpora.local_paths import local_path

DEMO_DOCUMENTS = 64
"""Documents of the demo corpus that `make demo` takes unless told otherwise: what two cores do in the
time."""


def demo_document_count(limit: int | None) -> int:
    """Return how many documents of the demo corpus to take.

    Raises:
        UsageError: fewer than one of each kind, or more than there are.
    """
    there_are = demo_size()
    count = DEMO_DOCUMENTS if limit is None else limit
    if not len(OWN_KINDS) < count <= there_are:
        raise UsageError(f"--limit: expected {len(OWN_KINDS) + 1} to {there_are}, found {count}.")
    return count


def corpus_uri(settings: Settings, corpus: str) -> str:
    """Return the corpus as the stages, which run elsewhere, will name it.

    Whether one is on S3 is seen when S3 is up.

    Raises:
        CorpusError: there is nothing at a local path, or it is no address of files.
        UsageError: this deployment lets no run read there.
    """
    if not corpus.strip():
        raise CorpusError(
            "expected a corpus, found none. Give a path or s3:// address: toolformer-ops run posts.jsonl"
        )
    if corpus.startswith("s3://"):
        return corpus
    path = local_path(settings, corpus, "corpus")
    if not path.exists():
        raise CorpusError(
            f"expected a corpus at {path}, found nothing. Give a path or s3:// address of JSON Lines."
        )
    return str(path)


def model_name(settings: Settings, chosen: str) -> str:
    """Return the language model: a folder's absolute path, a hub id with its revision, an s3:// address, or the demo model.

    Raises:
        ModelError: neither a folder that exists, nor id@revision, nor an s3:// address.
    """
    if chosen in ("", DEMO):
        return str(demo_model_path(settings.state_dir))
    if chosen.startswith(S3):
        return chosen
    folder = Path(normal_uri(chosen).removeprefix("file://"))
    if folder.is_dir() or folder == demo_model_path(settings.state_dir):
        return str(local_path(settings, str(folder), "model"))
    if "@" not in chosen:
        raise ModelError(
            "expected a folder with safetensors, an s3:// address, or a hub id with its revision as "
            f"id@revision, found {chosen!r}."
        )
    return chosen
