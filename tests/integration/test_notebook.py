"""What a notebook imports: annotate, explain and open_run; and the examples of docs/first_look.md, run in their order."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

import toolformer_ops
from tests.annotated_runs import AnnotatedRun
from tests.documentation import blocks
from tests.fake_language_model import FakeLanguageModel
from toolformer_ops import annotate, explain, notebook, open_run
from toolformer_ops.config import REPOSITORY
from toolformer_ops.errors import ConfigurationError, DatabaseError, UsageError
from toolformer_ops.on_a_file.annotate import annotator
from toolformer_ops.on_a_file.annotate.annotation_counts import AnnotationCounts
from toolformer_ops.runs.shown_progress import shown

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."
WITHOUT_PLACEBOS = {"placebos": 0, "placebo_sample": 0}


@pytest.fixture
def model(monkeypatch):
    fake = FakeLanguageModel()
    monkeypatch.setattr(annotator, "load_scoring_model", fake.load)
    monkeypatch.setattr(notebook, "_kept", [])
    return fake


def test_a_cell_that_is_run_again_loads_no_model(model):
    for _ in range(2):
        annotate([SUM], "Calculator", model="fake", **WITHOUT_PLACEBOS)
    assert model.loads == 1


def test_another_model_is_loaded(model):
    for name in ("fake", "other"):
        annotate([SUM], "Calculator", model=name, **WITHOUT_PLACEBOS)
    assert model.loads == 2


@pytest.mark.usefixtures("model")
def test_a_list_of_texts_becomes_a_table_of_calls():
    calls = annotate([{"id": "a", "text": SUM}, SUM], ["calculator"], model="fake", **WITHOUT_PLACEBOS)
    kept = calls[calls["kept"]]
    assert kept[["id", "call", "result"]].to_dict("records") == [
        {"id": "a", "call": "Calculator(2 + 3)", "result": "5"}
    ]


@pytest.mark.usefixtures("model")
def test_one_tool_is_named_without_a_list():
    calls = annotate([SUM], "Calculator", model="fake", **WITHOUT_PLACEBOS)
    assert set(calls["tool"]) == {"Calculator"}


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("threshold", "kept"), [(0.1, 1), (0.75, 1), (0.76, 0)])
def test_calls_are_kept_from_a_threshold_of_ones_own(threshold, kept):
    calls = annotate(
        [SUM], "Calculator", model="fake", thresholds={"Calculator": threshold}, **WITHOUT_PLACEBOS
    )
    assert calls["kept"].sum() == kept


@pytest.mark.usefixtures("model")
def test_the_path_of_a_corpus_is_read(tmp_path):
    (tmp_path / "docs.jsonl").write_text(f'{{"text": "{SUM}"}}\n')
    calls = annotate(tmp_path / "docs.jsonl", ["Calculator"], model="fake", **WITHOUT_PLACEBOS)
    assert set(calls["id"]) == {"docs.jsonl:1"}


@pytest.mark.usefixtures("model")
def test_a_table_shows_kept_calls_marked_without_a_tag_of_the_text():
    shown = annotate([f"<b>{SUM}"], ["Calculator"], model="fake", **WITHOUT_PLACEBOS)._repr_html_()
    assert "<b>There" not in shown
    assert "&lt;b&gt;There" in shown
    assert "[Calculator(2 + 3) -&gt; 5]</mark> 5 animals." in shown


@pytest.fixture
def notebook_lines(monkeypatch):
    """What a notebook shows beneath its cell, in its order; each takes the place of the one before."""
    lines: list[str] = []

    def display(values: dict[str, str], **_: Any) -> SimpleNamespace:
        lines.append(values["text/plain"])
        return SimpleNamespace(update=lambda values, **_: lines.append(values["text/plain"]))

    ipython = ModuleType("IPython.display")
    ipython.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", ipython)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    return lines


@pytest.mark.usefixtures("model")
def test_a_notebook_has_one_line_of_progress_that_ends_with_what_came_of_it(notebook_lines, capfd):
    console = Console(force_jupyter=True)
    counts = AnnotationCounts()
    with shown(counts.progress, console):
        counts.ended()
    assert notebook_lines[0] == "0:00"
    assert notebook_lines[-1].startswith("0:00 done, 0 calls scored")
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("model")
def test_a_part_of_a_table_is_shown_as_pandas_shows_it():
    calls = annotate([SUM], ["Calculator"], model="fake", **WITHOUT_PLACEBOS)
    assert calls[["call"]]._repr_html_() == pd.DataFrame(calls[["call"]])._repr_html_()


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ("text", {}, "expected a list of texts, or the path of a corpus as pathlib.Path"),
    ([SUM, {"body": SUM}], {}, r"texts\[1\]: no_text"),
    ([SUM], {"tools": ["Abacus"]}, "expected one of the tools"),
    ([SUM], {"sead": 1}, "sead"),
    ([SUM], {"preset": "tiny"}, "preset"),
]


@pytest.mark.parametrize(("texts", "given", "said"), WRONG)
def test_a_wrong_argument_is_one_sentence(texts, given, said):
    arguments: dict[str, Any] = {"tools": ["Calculator"], "model": "fake", **given}
    with pytest.raises(UsageError, match=said):
        annotate(texts, **arguments)


def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    def load(*_: object) -> None:
        raise ModuleNotFoundError(name="pyserini.index")

    monkeypatch.setattr(annotator, "load_scoring_model", load)
    monkeypatch.setattr(notebook, "_kept", [])
    with pytest.raises(ConfigurationError, match=r'pip install "toolformer-ops\[search\]"'):
        annotate([SUM], ["Calculator"], model="fake")


def test_a_call_is_explained_token_by_token(tiny_model_dir):
    marked = "There were 2 cats and 3 dogs, a total of [Calculator(2 + 3)] 5 animals."
    explanation = explain(marked, model=str(tiny_model_dir))
    assert list(explanation.tokens["weight"] > 0) == [True] * 5 + [False] * 3
    assert "Calculator(2 + 3) -&gt; 5 probability of the next tokens" in explanation._repr_html_()


@pytest.fixture
def stored_run(settings):
    """A run of two texts, of whose two calls one is kept."""
    stored = AnnotatedRun(settings, {"Calculator": 0.5}, prune_below=0.0)
    stored.add_call("Calculator", stored.add_text(SUM), " 5", "2 + 3", "5", saves=1.25)
    stored.add_call("Calculator", stored.add_text("2 and 3 make 5."), " 5", "2 + 3", "5", saves=0.25)
    stored.complete("Calculator")
    return open_run("run-1")


def test_an_opened_run_says_its_state(stored_run):
    assert str(stored_run) == "run run-1, running"


def test_a_run_has_its_calls_with_what_became_of_each(stored_run):
    assert stored_run.calls()["outcome"].tolist() == ["kept", "below_threshold"]


def test_the_kept_calls_of_a_run_are_marked_in_their_texts(stored_run):
    kept = stored_run.calls(kept=True)
    assert kept["call_text"].tolist() == ["Calculator(2 + 3)"]
    assert "[Calculator(2 + 3) -&gt; 5]</mark> 5 animals." in str(kept._repr_html_())


def test_a_call_that_is_not_kept_is_not_marked(stored_run):
    assert str(stored_run.calls()._repr_html_()).count("<mark") == 1


def test_a_run_has_its_texts(stored_run):
    assert stored_run.texts()["text"].tolist() == [SUM, "2 and 3 make 5."]


@pytest.mark.parametrize(("nats", "calls"), [(0.25, 2), (0.5, 1), (1.5, 0)])
def test_a_run_says_what_a_threshold_keeps(stored_run, nats, calls):
    assert stored_run.at_threshold(nats)["calls"].tolist() == [calls]
    several = stored_run.at_threshold().set_index("threshold")["calls"]
    assert several[nats] == calls


def test_a_query_is_about_the_run_that_was_opened(stored_run):
    answer = stored_run.sql(
        "select max(loss_reduction) from scored_calls_of() where tool = :tool", tool="Calculator"
    )
    assert answer["max"].tolist() == [1.25]


def test_a_query_of_a_notebook_cannot_write(stored_run):
    with pytest.raises(DatabaseError, match=r"permission denied|read-only"):
        stored_run.sql("delete from documents")


@pytest.mark.usefixtures("settings")
def test_a_run_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match="found none called 'nobody'"):
        open_run("nobody")


def names_of_the_page() -> dict[str, Any]:
    """What the examples of the page leave behind, run in their order."""
    names: dict[str, Any] = {}
    for example in blocks(REPOSITORY / "docs" / "first_look.md", "python"):
        exec(example, names)  # noqa: S102 - of our own page
    return names


@pytest.mark.filterwarnings("ignore")
def test_the_examples_of_the_page_run(settings, tiny_model_dir, monkeypatch):
    AnnotatedRun(settings, {"Calculator": 0.5})
    monkeypatch.setattr("toolformer_ops.local.demo.model.prepare_demo_model", lambda _: tiny_model_dir)
    assert {"calls", "from_two_nats", "explanation", "saved"} <= set(names_of_the_page())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_examples_of_the_page_keep_what_it_says(settings, smollm2_dir, monkeypatch):
    AnnotatedRun(settings, {"Calculator": 0.5})
    monkeypatch.setattr("toolformer_ops.local.demo.model.prepare_demo_model", lambda _: smollm2_dir)
    names = names_of_the_page()
    assert names["calls"]["kept"].sum() == 3
    assert names["from_two_nats"]["kept"].sum() == 1
    assert names["explanation"]["kept"]


def test_importing_the_package_imports_nothing_heavy():
    program = (
        "import sys; import toolformer_ops; "
        "assert not {'pandas', 'pydantic', 'torch', 'sqlalchemy', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'annotat'"):
        _ = toolformer_ops.annotat  # type: ignore[attr-defined]
