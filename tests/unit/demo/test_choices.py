"""What a user types is checked before anything starts."""

from pathlib import Path

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, ModelError, ToolError, UsageError
from toolformer_ops.local.demo.choices import DEMO_DOCUMENTS, corpus_choices, demo_document_count
from toolformer_ops.local.demo.model import demo_model_path
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


def test_tools_may_be_written_in_any_way(settings, corpus):
    assert corpus_choices(settings, corpus).tools == BUILT_IN_TOOLS
    for typed in (["calculator,QA"], ["Calculator QA"], ["Calculator", "Calculator,QA"]):
        assert corpus_choices(settings, corpus, typed).tools == ("Calculator", "QA")


def test_thresholds_may_be_written_in_any_way(settings, corpus):
    for words in (["calculator=0.75,mt=0.2"], ["Calculator=0.75", "MT=0.2"]):
        assert corpus_choices(settings, corpus, thresholds=words).keep_thresholds == {
            "Calculator": 0.75,
            "MT": 0.2,
        }
    lower = corpus_choices(
        settings, corpus, limit=5, parameters='{"prune_below": 0.05}', thresholds=["MT=0.05"]
    )
    assert (lower.document_limit, lower.kept_from()["MT"]) == (5, 0.05)


def test_a_run_without_finetuning_ends_with_its_release(settings, corpus):
    assert corpus_choices(settings, corpus).finetune is True
    assert corpus_choices(settings, corpus, finetune=False).finetune is False


def test_a_local_path_becomes_absolute_unlike_one_on_s3(settings, corpus, monkeypatch):
    monkeypatch.chdir(Path(corpus).parent)
    for typed in ("posts.jsonl", f"file://{corpus}"):
        assert corpus_choices(settings, typed).corpus == corpus
    assert corpus_choices(settings, "s3://bucket/posts.jsonl").corpus == "s3://bucket/posts.jsonl"


def test_what_cannot_be_is_named(settings, corpus):
    for wrong, error, message in (
        ({"corpus": "no-such-file.jsonl"}, CorpusError, "expected a corpus"),
        ({"tools": ["Calculator,Abacus"]}, ToolError, r"Calculator, Calendar, WikiSearch, QA, MT.*Abacus"),
        ({"model": "org/model"}, ModelError, r"id@revision, found 'org/model'"),
        ({"parameters": "{"}, UsageError, "expected a JSON object"),
        ({"parameters": '{"corpus": "x"}'}, UsageError, "corpus is given elsewhere"),
        ({"thresholds": ["Calculator"]}, UsageError, "expected TOOL=NUMBER"),
        ({"tools": ["QA"], "thresholds": ["MT=0.5"]}, UsageError, "expected chosen tools, found MT"),
    ):
        with pytest.raises(error, match=message):
            corpus_choices(settings, **{"corpus": corpus, **wrong})


def test_the_model_is_the_one_given_else_the_default_else_the_demos(settings, corpus):
    with_default = settings.model_copy(update={"default_model": "org/model@abc"})
    assert corpus_choices(settings, corpus).model == str(demo_model_path(settings.state_dir))
    assert corpus_choices(with_default, corpus).model == "org/model@abc"
    assert corpus_choices(with_default, corpus, model="org/other@def").model == "org/other@def"
    assert corpus_choices(with_default, corpus, model=str(Path(corpus).parent)).model == str(
        Path(corpus).parent
    )
