"""`from toolformer_ops import Annotator`: the method as an object that an engine calls with batches of texts.

    with Annotator("demo", "Calculator", placebo_pool="pool.parquet") as annotator:
        rows = annotator.annotate(["There were 2 cats and 3 dogs, a total of 5 animals."])

It keeps model and tools open, and travels to a worker of Ray or Spark by its arguments. The rows of a text are
final in its batch, and depend neither on the batch nor on its size: placebos are drawn from a file.
`annotate` of a notebook, whose pool is all of its texts, is in `notebook.py`.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate.call_table import call_schema, call_table, draw_from, printed
from toolformer_ops.on_a_file.annotate.file_tries import FileTries
from toolformer_ops.on_a_file.annotate.text_annotator import Row, TextAnnotator
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.presets import ON_ONE_MACHINE, Preset
from toolformer_ops.storage.corpora.record_rules import Rejection
from toolformer_ops.storage.corpora.records import read_record
from toolformer_ops.storage.objects.parts import NoParts
from toolformer_ops.tools.registry import typed_tools

if TYPE_CHECKING:
    import pyarrow

    from toolformer_ops.annotation.placebo import PlaceboDraw

Text = str | Mapping[str, Any]
"""A text, or a record as a line of a corpus has it: `text`, `url`, `date`, `id`."""
ALL_CONTEXT = 0
"""What `scoring_context_tokens` is for all the text, whatever the preset says; None says so, too."""
LIST_NAME = "texts"
"""What is used for the address of a corpus that is a list."""
RECORD_COLUMNS = ("id", "text", "url", "date")
"""The columns of a batch that are read."""
WITHOUT_PLACEBOS: Mapping[str, int] = {"placebos": 0, "placebo_sample": 0}


def annotation_choices(
    model: str,
    tools: str | Sequence[str],
    corpus: str,
    preset: Preset,
    thresholds: Mapping[str, float] | None,
    parameters: Mapping[str, Any],
) -> RunChoices:
    """A run's choices from the arguments of a notebook.

    Raises:
        UsageError: a tool, a parameter or the model is none.
    """
    from toolformer_ops.local.demo.model import named_model

    values = {"preset": preset, **parameters}
    if parameters.get("scoring_context_tokens", ALL_CONTEXT) is None:
        values["scoring_context_tokens"] = ALL_CONTEXT
    if thresholds:
        values = {"prune_below": min(thresholds.values()), **values, "keep_thresholds": dict(thresholds)}
    names = typed_tools([tools] if isinstance(tools, str) else tools)
    subject = {"corpus": corpus, "model": named_model(load_settings(), model)}
    choices = RunChoices.parse({"tools": names, **values, **subject})
    choices.kept_from()
    return choices


def read_texts(texts: Iterable[Text]) -> list[tuple[str, Document]]:
    """Each text with its record's id, or else its number in the list.

    Raises:
        UsageError: one is no text.
    """
    documents = []
    for number, item in enumerate(texts):
        record = read_record(
            json.dumps({"text": item} if isinstance(item, str) else dict(item), default=str).encode()
        )
        if isinstance(record, Rejection):
            raise UsageError(f"texts[{number}]: {record.reason}; {record.detail}. Leave it out, or mend it.")
        documents.append((record.record_id or str(number), record.document()))
    return documents


class Annotator:
    """A model and tools, loaded when the first text comes, that find calls in texts.

    It is pickled by its arguments: weights, indices and connections are opened where it is used. The settings
    (`TOOLFORMER_DEVICE`, `TOOLFORMER_DTYPE`, S3) are those of that process.
    """

    def __init__(
        self,
        model: str,
        tools: str | Sequence[str],
        *,
        preset: Preset = ON_ONE_MACHINE,
        thresholds: Mapping[str, float] | None = None,
        placebo_pool: str | Path | None = None,
        **parameters: Any,
    ) -> None:
        """Read the arguments; load nothing.

        Args:
            model: a folder, id@revision or s3:// address; `demo`: the demo's model; empty: the setting
            default_model.
            tools: a name, such as Calculator, or several.
            preset: what parameters hold that are not given: `small_model`, or `paper`.
            thresholds: by tool, from what gain on a call is kept; a tool without one has the usual one.
            placebo_pool: a file or folder of calls of other texts, as `annotate` writes them, whose results
            are the placebos. Without it a call is judged by what it gains before its placebo, as `preview`
            does.
            parameters: other parameters of a run, such as `seed=1` (`toolformer-ops parameters`).

        Raises:
            UsageError: a tool, a parameter or the model is none; the message has the remedy.
        """
        self._arguments = {
            "model": model,
            "tools": tools,
            "preset": preset,
            "thresholds": thresholds,
            "placebo_pool": placebo_pool,
            **parameters,
        }
        if placebo_pool is None:
            parameters = {**parameters, **WITHOUT_PLACEBOS}
        self._choices = annotation_choices(model, tools, LIST_NAME, preset, thresholds, parameters)
        if self._choices.until_kept:
            raise UsageError(
                "until_kept: expected none, since a batch does not know what others keep, found "
                f"{self._choices.until_kept}. Leave it out."
            )
        self._pool = placebo_pool
        if placebo_pool is not None and not self._choices.placebos:
            raise UsageError(
                "placebos: expected at least 1 beside placebo_pool, found 0. Leave one of them out."
            )

    def __reduce__(self) -> tuple[Callable[[], "Annotator"], tuple[()]]:
        return functools.partial(Annotator, **self._arguments), ()

    def __enter__(self) -> "Annotator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @functools.cached_property
    def _open(self) -> TextAnnotator:
        return TextAnnotator.of(load_settings(), self._choices)

    @functools.cached_property
    def _draws(self) -> "dict[str, PlaceboDraw]":
        """By tool; none without a pool."""
        if self._pool is None:
            return {}
        return draw_from(load_settings(), str(self._pool), self._choices.tools, self._choices.placebos)

    def annotate(self, texts: Iterable[Text]) -> list[Row]:
        """Each call that has a result, kept or not, with its losses in nats: text by text and tool by tool.

        A repeated text has its rows twice, under the id of each record.

        Raises:
            UsageError: a text or the pool is not one.
            ModelError, ToolError: the model, the device or what a tool needs is not there.
        """
        if isinstance(texts, str):
            raise UsageError("texts: expected a list of texts, found a string. Put it into a list.")
        documents = read_texts(texts)
        open_tools, draws = self._open, self._draws
        # 1. Each distinct text once, by what tools read of it.
        items = {document.record_id: open_tools.to_annotate(name, document) for name, document in documents}
        rows: dict[tuple[Any, str], list[Row]] = {}
        for annotator in open_tools.tools:
            own_items = [item for item in items.values() if item.paragraphs[annotator.name]]
            annotated = open_tools.annotated(annotator, own_items, FileTries(NoParts(), annotator.name))
            if draws:
                annotator.judge(annotated, draws[annotator.name], LIST_NAME)
            for text in annotated:
                rows[text.document.record_id, annotator.name] = text.rows
        # 2. In the order of the texts.
        every_row: list[Row] = []
        for name, document in documents:
            for annotator in open_tools.tools:
                own = rows.get((document.record_id, annotator.name), [])
                every_row += [printed({**row, "id": name}) for row in own]
        return every_row

    def annotate_batch(self, table: "pyarrow.Table") -> "pyarrow.Table":
        """The calls of a batch, as `annotate`: its columns are `text` and perhaps `id`, `url`, `date`.

        The table of the calls has all columns also without a row.

        Raises:
            UsageError: there is no column `text`, or a text is null.
        """
        if "text" not in table.column_names:
            raise UsageError(
                f"expected a column `text`, found {', '.join(table.column_names) or 'none'}. Rename the column "
                "of the texts."
            )
        columns = [name for name in RECORD_COLUMNS if name in table.column_names]
        return call_table(self.annotate(table.select(columns).to_pylist()))

    __call__ = annotate_batch

    @property
    def schema(self) -> "pyarrow.Schema":
        """The columns of the tables that `annotate_batch` returns, for an engine that asks before."""
        return call_schema()

    def close(self) -> None:
        """Close the tools, and let the model go; the next text loads them again."""
        opened = self.__dict__.pop("_open", None)
        if opened is not None:
            opened.close()
