"""What a user types is checked before anything starts."""

from pathlib import Path

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, ModelError, ToolError, UsageError
from toolformer_ops.local.demo.choices import DEMO_DOCUMENTS, corpus_uri, demo_document_count, model_name
from toolformer_ops.local.demo.model import demo_model_path
from toolformer_ops.runs.typed_choices import typed_choices
from toolformer_ops.tools.registry import BUILT_IN_TOOLS


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "posts.jsonl"
    path.write_text('{"text": "One."}\n')
    return str(path)


@pytest.fixture
def settings(tmp_path):
    return Settings(state_dir=tmp_path / "state")


def test_a_number_of_documents_holds_each_kind():
    assert [demo_document_count(count) for count in (None, 5, 162)] == [DEMO_DOCUMENTS, 5, 162]
    for count in (0, 4, 163):
        with pytest.raises(UsageError, match=f"expected 5 to 162, found {count}"):
            demo_document_count(count)


def chosen(**typed):
    return typed_choices("posts.jsonl", "model", **typed)


def test_tools_may_be_written_in_any_way():
    assert chosen().tools == BUILT_IN_TOOLS
    for typed in (["calculator,QA"], ["Calculator QA"], ["Calculator", "Calculator,QA"]):
        assert chosen(tools=typed).tools == ("Calculator", "QA")


def test_thresholds_may_be_written_in_any_way():
    for words in (["calculator=0.75,mt=0.2"], ["Calculator=0.75", "MT=0.2"]):
        assert chosen(thresholds=words).keep_thresholds == {"Calculator": 0.75, "MT": 0.2}


def test_thresholds_are_those_of_the_run():
    lower = chosen(parameters='{"prune_below": 0.05}', thresholds=["MT=0.05"])
    assert lower.kept_from()["MT"] == 0.05


def test_a_choice_of_the_command_stands_over_typed_ones():
    assert chosen(parameters='{"finetune": true}', finetune=False).finetune is False


def test_a_local_path_becomes_absolute_unlike_one_on_s3(settings, corpus, monkeypatch):
    monkeypatch.chdir(Path(corpus).parent)
    for typed in ("posts.jsonl", f"file://{corpus}"):
        assert corpus_uri(settings, typed) == corpus
    assert corpus_uri(settings, "s3://bucket/posts.jsonl") == "s3://bucket/posts.jsonl"


def test_a_corpus_that_is_not_there_is_named(settings):
    with pytest.raises(CorpusError, match="expected a corpus"):
        corpus_uri(settings, "no-such-file.jsonl")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"tools": ["Calculator,Abacus"]}, ToolError, r"Calculator, Calendar, WikiSearch, QA, MT.*Abacus"),
        ({"parameters": "{"}, UsageError, "expected a JSON object"),
        ({"parameters": '{"corpus": "x"}'}, UsageError, "corpus is given elsewhere"),
        ({"thresholds": ["Calculator"]}, UsageError, "expected TOOL=NUMBER"),
        ({"tools": ["QA"], "thresholds": ["MT=0.5"]}, UsageError, "expected chosen tools, found MT"),
    ],
)
def test_what_cannot_be_is_named(wrong, error, message):
    with pytest.raises(error, match=message):
        chosen(**wrong)


def test_the_demos_model_is_taken_where_none_is_named(settings):
    for typed in ("", "demo"):
        assert model_name(settings, typed) == str(demo_model_path(settings.state_dir))


def test_a_model_is_a_folder_or_a_revision_of_a_hub(settings, tmp_path):
    assert model_name(settings, str(tmp_path)) == str(tmp_path)
    assert model_name(settings, "org/other@def") == "org/other@def"
    with pytest.raises(ModelError, match=r"id@revision, found 'org/model'"):
        model_name(settings, "org/model")
