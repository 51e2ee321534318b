"""From what a user types to the parameters of a run: checked before anything starts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.demo.corpus import OWN_KINDS, demo_size
from toolformer_ops.demo.model import demo_model_path
from toolformer_ops.demo.parameters import DEMO_DOCUMENTS, demo_parameters
from toolformer_ops.errors import CorpusError, ModelError, ParameterError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.tools.registry import get_tool, tool_names


def demo_document_count(asked: int | None) -> int:
    """How many documents of the demo corpus to take.

    Raises:
        ParameterError: fewer than one of each kind, or more than there are.
    """
    there_are = demo_size()
    count = DEMO_DOCUMENTS if asked is None else asked
    if not len(OWN_KINDS) < count <= there_are:
        raise ParameterError(f"--documents: expected {len(OWN_KINDS) + 1} to {there_are}, found {count}.")
    return count


def corpus_parameters(
    settings: Settings,
    corpus: str,
    tools: Sequence[str] = (),
    limit: int | None = None,
    model: str = "",
    parameters: str = "",
) -> RunChoices:
    """The parameters of `make run`: the demo's numbers, and over them what the user chose.

    Args:
        settings: for the default model.
        corpus: a path, made absolute here because the stages run elsewhere; or an s3:// address, looked up when S3 is up.
        tools: names; one item may hold several with commas or spaces between them. None: all tools.
        limit: the first documents only.
        model: folder or id@revision; empty means the setting `default_model`, else the demo model.
        parameters: other fields of `RunChoices` as a JSON object.

    Raises:
        CorpusError, ToolError, ModelError, ParameterError: what was typed cannot be; nothing was started.
    """
    choices: dict[str, Any] = {**_json_object(parameters)}
    if tools:
        choices["tools"] = chosen_tools(tools)
    if limit is not None:
        choices["document_limit"] = limit
    for name in ("corpus", "model"):
        if name in choices:
            raise ParameterError(f"--parameters: {name} has a place of its own on the command line.")
    return demo_parameters(corpus_uri(corpus), model_name(settings, model or settings.default_model), **choices)


def chosen_tools(names: Sequence[str]) -> tuple[str, ...]:
    """Tools by their names as typed; capitals do not matter.

    Raises:
        ToolError: there is no such tool; the message lists those there are.
    """
    typed = [name for item in names for name in item.replace(",", " ").split()]
    return tuple(dict.fromkeys(get_tool(name).spec.name for name in typed)) or tool_names()


def corpus_uri(corpus: str) -> str:
    """The corpus as the stages will name it.

    Raises:
        CorpusError: there is nothing at a local path.
    """
    if not corpus.strip():
        raise CorpusError("expected a corpus, found none. Give a path or s3:// address: make run CORPUS=posts.jsonl")
    if corpus.startswith("s3://"):
        return corpus
    path = Path(corpus.removeprefix("file://")).expanduser().resolve()
    if not path.exists():
        raise CorpusError(f"expected a corpus at {path}, found nothing. Give a path or s3:// address of JSON Lines.")
    return str(path)


def model_name(settings: Settings, chosen: str) -> str:
    """The language model: a folder's absolute path, a hub id with its revision, or the demo model where nothing was chosen.

    Raises:
        ModelError: neither a folder that is there nor id@revision.
    """
    if not chosen:
        return str(demo_model_path(settings.state_dir))
    folder = Path(chosen).expanduser()
    if folder.is_dir() or folder.resolve() == demo_model_path(settings.state_dir):
        return str(folder.resolve())
    if "@" not in chosen:
        raise ModelError(
            f"expected a folder with safetensors, or a hub id with its revision as id@revision, found {chosen!r}."
        )
    return chosen


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise ParameterError(f"--parameters: expected a JSON object, found {text[:80]!r} ({error}).") from error
    if not isinstance(value, dict):
        raise ParameterError(f"--parameters: expected a JSON object, found {type(value).__name__}.")
    return value
