"""What a user types is checked before anything starts."""

from pathlib import Path

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.demo.choices import (
    DEMO_DOCUMENTS,
    corpus_choices,
    demo_choices,
    demo_document_count,
)
from toolformer_ops.demo.model import demo_model_path
from toolformer_ops.errors import CorpusError, ModelError, ParameterError, ToolError
from toolformer_ops.runs.choices import PRESETS
from toolformer_ops.tools.registry import PAPER_TOOLS


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "posts.jsonl"
    path.write_text('{"text": "One."}\n')
    return str(path)


@pytest.fixture
def settings(settings_of_no_service: Settings, tmp_path: Path) -> Settings:
    return settings_of_no_service.model_copy(update={"state_dir": tmp_path / "state"})


def test_the_demos_numbers_are_choices_of_a_run_and_can_be_overruled() -> None:
    numbers = PRESETS["small_model"]
    chosen = demo_choices("corpus", "model", max_positions=7)
    assert {name: getattr(chosen, name) for name in numbers} == {**numbers, "max_positions": 7}


def test_the_demo_takes_at_least_the_sixty_documents_that_it_promises() -> None:
    assert demo_document_count(None) == DEMO_DOCUMENTS >= 60


@pytest.mark.parametrize("count", [4, 140])
def test_any_number_of_documents_that_holds_each_kind_is_taken(count: int) -> None:
    assert demo_document_count(count) == count


@pytest.mark.parametrize("count", [0, 3, 141])
def test_more_documents_than_there_are_or_too_few_is_an_error(count: int) -> None:
    with pytest.raises(ParameterError, match=f"expected 4 to 140, found {count}"):
        demo_document_count(count)


def test_tools_may_be_named_in_any_way_and_default_to_all(settings: Settings, corpus: str) -> None:
    assert corpus_choices(settings, corpus).tools == PAPER_TOOLS
    for typed in (["calculator,QA"], ["Calculator", "qa"], ["Calculator QA"], ["Calculator", "Calculator,QA"]):
        assert corpus_choices(settings, corpus, typed).tools == ("Calculator", "QA")


def test_an_unknown_tool_is_an_error_that_lists_the_tools(settings: Settings, corpus: str) -> None:
    with pytest.raises(ToolError, match=r"Calculator, Calendar, WikiSearch, QA, MT.*Abacus"):
        corpus_choices(settings, corpus, ["Calculator,Abacus"])


def test_a_relative_path_becomes_absolute(settings: Settings, corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(corpus).parent)
    assert corpus_choices(settings, "posts.jsonl").corpus == corpus
    assert corpus_choices(settings, f"file://{corpus}").corpus == corpus


@pytest.mark.parametrize("missing", ["no-such-file.jsonl", " "])
def test_a_corpus_that_is_not_there_is_an_error(settings: Settings, missing: str) -> None:
    with pytest.raises(CorpusError, match="expected a corpus"):
        corpus_choices(settings, missing)


def test_a_corpus_on_s3_is_looked_up_later(settings: Settings) -> None:
    assert corpus_choices(settings, "s3://bucket/posts.jsonl").corpus == "s3://bucket/posts.jsonl"


def test_the_model_is_the_one_given_else_the_default_else_the_demos(settings: Settings, corpus: str) -> None:
    demo = str(demo_model_path(settings.state_dir))
    with_default = settings.model_copy(update={"default_model": "org/model@abc"})
    assert corpus_choices(settings, corpus).model == demo
    assert corpus_choices(with_default, corpus).model == "org/model@abc"
    assert corpus_choices(with_default, corpus, model="org/other@def").model == "org/other@def"
    assert corpus_choices(with_default, corpus, model=str(Path(corpus).parent)).model == str(Path(corpus).parent)


def test_a_model_without_a_revision_is_an_error(settings: Settings, corpus: str) -> None:
    with pytest.raises(ModelError, match=r"id@revision, found 'org/model'"):
        corpus_choices(settings, corpus, model="org/model")


def test_limit_and_other_parameters_are_taken(settings: Settings, corpus: str) -> None:
    parameters = corpus_choices(settings, corpus, limit=5, parameters='{"seed": 3, "finetune": false}')
    assert (parameters.document_limit, parameters.seed, parameters.finetune) == (5, 3, False)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("{", "expected a JSON object"),
        ("[1]", "found list"),
        ('{"sed": 3}', "sed"),
        ('{"finetune_steps": 0}', "finetune_steps"),
        ('{"corpus": "x"}', "corpus is given elsewhere"),
    ],
)
def test_parameters_that_cannot_be_are_named(settings: Settings, corpus: str, typed: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        corpus_choices(settings, corpus, parameters=typed)


def test_thresholds_may_be_written_in_any_way_and_are_checked_before_anything_starts(
    settings: Settings, corpus: str
) -> None:
    for words in (["Calculator=0.75 MT=2"], ["calculator=0.75,mt=2"], ["Calculator=0.75", "MT=2"]):
        assert corpus_choices(settings, corpus, thresholds=words).keep_thresholds == {"Calculator": 0.75, "MT": 2.0}
    lower = corpus_choices(settings, corpus, parameters='{"prune_below": 0.25}', thresholds=["Calculator=0.25"])
    assert lower.kept_from()["Calculator"] == 0.25
    for word, error, said in (
        ("Calculator", ParameterError, "expected TOOL=NATS, such as Calculator=0.3, found 'Calculator'"),
        ("Calculator=much", ParameterError, "found 'Calculator=much'"),
        ("Calculator=nan", ParameterError, "keep_thresholds.Calculator"),
        ("Abacus=1", ToolError, "Abacus"),
        ("MT=0.25", ParameterError, "Set prune_below to 0.25 or lower"),
    ):
        with pytest.raises(error, match=said):
            corpus_choices(settings, corpus, thresholds=[word])
    with pytest.raises(ParameterError, match="expected chosen tools, found MT"):
        corpus_choices(settings, corpus, tools=["QA"], thresholds=["MT=1"])
