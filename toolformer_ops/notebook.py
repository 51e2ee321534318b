"""The factory in a notebook: `from toolformer_ops import annotate, explain, open_run`.

`annotate` and `explain` work in this process, without services, as the commands of these names do
(docs/first_look.md); `open_run` reads the views of a stored run, as the read-only role. Imported when one of
them is first asked for, so that `import toolformer_ops` stays cheap.
"""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pandas as pd
from rich.console import Console
from sqlalchemy import text as sql_text

from toolformer_ops.annotator import LIST_NAME, annotation_choices, read_texts
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import UsageError, lacking_package
from toolformer_ops.language_model.models.identity import local_folder, split_revision
from toolformer_ops.on_a_file.annotate.annotation import Annotation, Documents
from toolformer_ops.on_a_file.annotate.annotator import Models, models_of
from toolformer_ops.on_a_file.annotate.text_annotator import TextAnnotator
from toolformer_ops.on_a_file.look import calls_page
from toolformer_ops.on_a_file.look.explanation import call_in_text, explain_call
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.presets import ON_ONE_MACHINE, Preset
from toolformer_ops.runs.shown_progress import shown
from toolformer_ops.shown_text import gained, needed
from toolformer_ops.storage.postgres import database, queries

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

# What loads a model brings tqdm, which asks for widgets of Jupyter that nothing here shows.
warnings.filterwarnings("ignore", message="IProgress not found")

MOST_CALLS = 10_000
"""Rows that are read of a run unless more are asked for."""


def _with_remedies(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function.

    A package that an extra brings and that is not installed is an error that names the extra.
    """

    @functools.wraps(function)
    def with_remedies(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            with_remedy = lacking_package(error)
            if with_remedy is None:
                raise
            raise with_remedy from error

    return with_remedies


class Calls(pd.DataFrame):  # type: ignore[misc]
    """A table of calls, a row each.

    A notebook shows each call in the text around it, the kept ones marked.
    """

    @property
    def _constructor(self) -> type["Calls"]:
        return Calls

    def _repr_html_(self) -> str | None:
        """The calls as HTML, every text escaped; as pandas shows a table if columns that this needs were taken out."""
        rows = [_shown_row(row) for row in self.head(MOST_SHOWN).to_dict("records")]
        if any(row is None for row in rows):
            plain: str | None = super()._repr_html_()
            return plain
        return calls_page.table([row for row in rows if row is not None], len(self))


MOST_SHOWN = 50
"""Rows of a table that a notebook shows."""
_OF_VIEW = {"before": "text_before", "after": "text_after", "call": "call_text", "not_kept": "outcome"}
"""By column of `annotate`, that of the views of a run."""
_USUAL = {"input_only_after": False, "keep_threshold": 0.0}
"""What a row need not say."""


def _shown_row(values: Mapping[Any, Any]) -> dict[str, Any] | None:
    """A row as `calls_page` shows it; None if columns are lacking."""
    # pandas has nan where a number is missing
    present = {str(name): None if value != value else value for name, value in values.items()}  # noqa: PLR0124
    row = {**_USUAL, **present}
    for name, in_view in _OF_VIEW.items():
        if name not in row and in_view in row:
            row[name] = row[in_view]
    needed = ("before", "after", "call", "result", "gain", "document_id")
    if any(name not in row for name in needed):
        return None
    return {"reason": None, "position_char": len(str(row["before"])), **row}


@_with_remedies
def annotate(
    texts: Iterable[str | Mapping[str, Any]] | Path,
    tools: str | Sequence[str],
    *,
    model: str = "",
    preset: Preset = ON_ONE_MACHINE,
    limit: int | None = None,
    thresholds: Mapping[str, float] | None = None,
    **parameters: Any,
) -> Calls:
    """Do the whole method on texts, in this process.

    Returns every call that has a result, with its losses in nats.

    Args:
        texts: strings, or records as lines of a corpus have them (`text`, `url`, `date`, `id`); or the path
            of a corpus.
        tools: a name, such as Calculator, or several.
        model: a folder, id@revision or s3:// address; `demo`: the demo's model; empty: the setting
        default_model.
        preset: what parameters hold that are not given: `small_model`, or `paper`.
        limit: only the first texts.
        thresholds: by tool, from how many nats on a call is kept; a tool without one has the usual one. What
            provably gains less than the lowest is not computed, unless `prune_below` says otherwise.
        parameters: other parameters of a run, such as `seed=1` or `placebos=0` (`toolformer-ops parameters`).

    Raises:
        UsageError: a text, a tool, a parameter or the model is none; the message has the remedy.
    """
    if isinstance(texts, str):
        raise UsageError(
            "texts: expected a list of texts, or the path of a corpus as pathlib.Path, found a string."
        )
    if limit:
        parameters["document_limit"] = limit
    corpus = str(texts) if isinstance(texts, Path) else LIST_NAME
    choices = annotation_choices(model, tools, corpus, preset, thresholds, parameters)
    documents: Documents | None = None
    if not isinstance(texts, Path):
        records: dict[object, tuple[str, Document]] = {}
        for name, document in itertools.islice(read_texts(texts), limit):
            records.setdefault(document.document_id, (name, document))
        documents = functools.partial(iter, list(records.values()))
    settings = load_settings()
    annotator = TextAnnotator.of(settings, choices, _kept_models(settings, choices))
    annotation = Annotation.by(annotator, choices, documents)
    with contextlib.closing(annotator), shown(annotation.counts.progress, Console(stderr=True)):
        rows = list(annotation.rows())
    return Calls(rows)


_kept: list[tuple[object, Models]] = []
"""The models of the last call, with what decides them."""


def _kept_models(settings: Settings, choices: RunChoices) -> Models:
    """The models of the last call if these are the same, so that a cell that is run again loads none."""
    folder = local_folder(split_revision(choices.model)[0], settings)
    files = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    content = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    model = (choices.model, choices.verify_in_float32, choices.keep_rule, choices.endpoint)
    key = (settings, model, content)
    if not _kept or _kept[0][0] != key:
        _kept[:] = [(key, models_of(settings, choices))]
    return _kept[0][1]


class Explanation(dict[str, Any]):
    """A call's losses, token by token, under the names that `explain --json` has."""

    @property
    def tokens(self) -> pd.DataFrame:
        """A row for each token that the losses weight, with its log probabilities."""
        return pd.DataFrame(self.get("tokens", []))

    def _repr_html_(self) -> str:
        head = f"<p>{calls_page.escaped(self['call'])}"
        if self.get("loss_reduction") is None:
            return f"{head}: no result ({calls_page.escaped(self['reason'])})</p>"
        kept = "kept" if self["kept"] else "not kept"
        gain = gained(self["gain"], self["probability_with"], self["keep_threshold"])
        needs = needed(self["keep_threshold"], self["probability_without"] is not None)
        saves = f"{gain}: {kept}, {needs}"
        return (
            f"{head} -&gt; {calls_page.escaped(self['result'])} {saves}</p>{self.tokens.to_html(index=False)}"
        )


@_with_remedies
def explain(text: str, *, date: str | None = None, model: str = "") -> Explanation:
    """Run the tool of the call in brackets in the text, and score it token by token.

    Raises:
        UsageError: the text does not hold one call, or the model is not there.
    """
    text, at, call = call_in_text(text)
    from toolformer_ops.local.demo.model import named_model

    settings = load_settings()
    return Explanation(explain_call(settings, text, at, call, date, named_model(settings, model)))


class StoredRun:
    """A run whose views are read, by the read-only role."""

    def __init__(self, run_id: str) -> None:
        """Raises `UsageError` if there is no such run, and as `database.connect_dsn`."""
        dsn = load_settings().reader_dsn.get_secret_value()
        self._engine = database.connect_dsn(dsn, "TOOLFORMER_READER_DSN")
        self.run_id = run_id
        rows = self._rows("run")
        if not rows:
            raise UsageError(
                f"expected a run that has started, found none called {run_id!r}. `toolformer-ops runs` lists "
                "them."
            )
        self.state = str(rows[0]["state"])

    def calls(self, *, kept: bool = False, at_most: int = MOST_CALLS) -> Calls:
        """The candidate calls with the columns of the view `candidates`: what became of each, and why.

        Those that gain most come first. With `kept` the kept calls alone.
        """
        return Calls(self._rows("calls", only_kept=kept, at_most=at_most))

    def at_threshold(self, nats: float | None = None) -> pd.DataFrame:
        """How many calls and texts of each tool a threshold would keep; without one, several thresholds."""
        return pd.DataFrame(self._rows("at_threshold", at_least=nats))

    def texts(self, at_most: int = MOST_CALLS) -> pd.DataFrame:
        """The run's texts in the order of the corpus, with url and date."""
        return pd.DataFrame(self._rows("texts", at_most=at_most))

    def sql(self, query: str, **values: Any) -> pd.DataFrame:
        """The answer to a query, which reads and has a minute; functions about runs are about this run.

        Args:
            query: a query of Postgres, with a name such as `:tool` for each of `values`.
            values: bound by Postgres, never written into the query.

        Raises:
            DatabaseError: Postgres refuses it.
        """
        with database.transaction(self._engine) as connection:
            database.fetch_all(connection, queries.notebook.about_run, run_id=self.run_id)
            with database.translating("the query"):
                return pd.DataFrame(connection.execute(sql_text(query), values).mappings().all())

    def _rows(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        with database.transaction(self._engine) as connection:
            rows = database.fetch_all(
                connection, queries.notebook[statement], run_id=self.run_id, **parameters
            )
            return [dict(row._mapping) for row in rows]

    def __repr__(self) -> str:
        return f"run {self.run_id}, {self.state}"


@_with_remedies
def open_run(run_id: str) -> StoredRun:
    """A run by its id, to read what it stored; raises as `StoredRun`."""
    return StoredRun(run_id)
