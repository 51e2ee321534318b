"""What `check` sees of a corpus, tools and a model before anything starts, and which remedy it names."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.openai_server import MODEL, continues, openai_server, write_proposer_file
from toolformer_ops.cli.on_a_file import app
from toolformer_ops.config import Settings
from toolformer_ops.local.demo import model as demo_model
from toolformer_ops.on_a_file.look import checking
from toolformer_ops.on_a_file.look.checking import CorpusLook, observations, weights_of
from toolformer_ops.runs.choices import RunChoices

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."


def seen(corpus: Path, *tools: str, is_here: bool = False, model: str = "m", **values: Any) -> dict[str, str]:
    """The lines by their subject."""
    given = {"corpus": str(corpus), "model": model, "tools": tools or ("Calculator",), **values}
    lines = observations(Settings(), RunChoices.parse(given), CorpusLook(), is_here=is_here)
    return {line.subject: f"{line.state} {line.detail}" for line in lines}


def corpus_of(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "docs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_text_under_another_name_is_named_with_its_option(tmp_path):
    corpus = corpus_of(tmp_path, {"id": 1, "content": SUM}, {"id": 2, "content": "b"})
    assert seen(corpus)["corpus"] == (
        "wrong no usable record: 2 record has no text. content, not text: --field text=content"
    )


def test_a_text_under_another_name_is_named_behind_a_line_that_is_no_record(tmp_path):
    corpus = corpus_of(tmp_path, {"id": 1, "content": SUM})
    corpus.write_text(f"no record\n{corpus.read_text()}")
    assert seen(corpus)["corpus"].endswith("content, not text: --field text=content")


def test_with_the_option_the_texts_are_there(tmp_path):
    corpus = corpus_of(tmp_path, {"id": 1, "content": SUM}, {"id": 2, "content": "b"})
    lines = seen(corpus, fields=("text=content",))
    assert lines["corpus"] == f"ok 2 texts, of {(len(SUM) + 1) / 2:,.0f} characters on average"
    assert lines["fields"] == "ok text=content, no url, no date"


def test_a_field_that_may_be_the_date_is_named_with_its_option(tmp_path):
    corpus = corpus_of(
        tmp_path, *({"text": f"{n}", "created": "2020-01-01", "link": "https://a"} for n in range(2))
    )
    assert seen(corpus)["fields"] == (
        "mind text=text, no url, no date; not read: created, link; created may be the date, --field date=created; link may "
        "be the url, --field url=link"
    )


LONG = (
    "The council met on Monday and decided that the bridge over the river will be closed for repairs until the spring, "
    "that buses take the road along the canal instead, and that those who live on the other bank may use the ferry for "
    "nothing on every day of the week but Sunday"
)


def test_texts_that_nearly_repeat_another_are_counted_with_the_option_that_leaves_them_out(tmp_path):
    texts = [f"{LONG}.", f"{LONG}, says the mayor.", SUM]
    corpus = corpus_of(tmp_path, *({"text": text} for text in texts))
    line = seen(corpus)["near-duplicates"]
    assert line.startswith("mind 1 of 3 texts nearly repeat another one, such as docs.jsonl:")
    assert line.endswith("; --field near_duplicates=0.8 leaves them out")


@pytest.mark.parametrize(
    ("texts", "fields"),
    [([f"{LONG}.", SUM], ()), ([f"{LONG}.", f"{LONG}, says the mayor."], ("near_duplicates=0.8",))],
)
def test_no_near_duplicates_are_named_if_there_are_none_or_they_are_left_out(tmp_path, texts, fields):
    corpus = corpus_of(tmp_path, *({"text": text} for text in texts))
    assert "near-duplicates" not in seen(corpus, fields=fields)


def test_refused_records_are_counted_with_the_first(tmp_path):
    corpus = corpus_of(tmp_path, {"text": SUM}, {"text": ""})
    assert seen(corpus)["records"].startswith(
        "mind 1 of 2 are refused: 1 text is empty. The first: found 0 characters"
    )


def test_a_tool_that_is_asked_in_no_text_says_why(tmp_path):
    assert seen(corpus_of(tmp_path, {"text": SUM}), "Calendar")["Calendar"] == (
        "mind asked in 0 of 1 texts, so it does nothing here: 1 neither URL nor date"
    )


def test_a_tool_says_in_how_many_texts_it_is_asked(tmp_path):
    assert seen(corpus_of(tmp_path, {"text": SUM}, {"text": "None."}))["Calculator"] == (
        "ok asked in 1 of 2 texts (not: 1 fewer than three numbers); at most 20 x 10 samples a text, kept from 0.5 nats"
    )


@pytest.mark.parametrize(
    ("keep_rule", "unit"),
    [("paper", "kept from 0.5 nats"), ("probability", "kept from 1.25 times the probability")],
)
def test_a_tool_says_its_threshold_in_the_unit_of_the_keep_rule(tmp_path, keep_rule, unit):
    corpus = corpus_of(tmp_path, {"text": SUM})
    assert seen(corpus, keep_rule=keep_rule)["Calculator"].endswith(f"samples a text, {unit}")


def test_a_search_without_an_index_is_wrong_where_it_would_run(tmp_path):
    corpus = corpus_of(tmp_path, {"text": SUM})
    assert seen(corpus, "QA", is_here=True)["QA"].startswith("wrong expected a search index in")
    assert seen(corpus, "QA", is_here=False)["QA"].startswith("ok asked in 1 of 1 texts")


def test_of_a_large_corpus_the_first_texts_say_about_how_many_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "MOST_TEXTS", 1000)
    corpus = corpus_of(tmp_path, *({"text": f"{n:06} {'word ' * 200}"} for n in range(4000)))
    line = seen(corpus)["corpus"]
    assert line.startswith("ok about ")
    about = int(line.split()[2].replace(",", ""))
    assert 3500 < about < 4500


def test_with_a_limit_it_is_about_so_many_texts(tmp_path):
    corpus = corpus_of(tmp_path, *({"text": f"{n:06} {'word ' * 200}"} for n in range(4000)))
    limited, beyond = (seen(corpus, document_limit=limit)["corpus"] for limit in (3, 2000))
    assert limited.startswith("ok 3 texts, the limit, ")
    assert beyond.startswith("ok about 2,000 texts, of which the first 1,000 were read, ")


def test_a_limit_counts_no_refused_records(tmp_path):
    corpus = corpus_of(tmp_path, {"text": ""}, {"text": ""}, {"text": SUM}, {"text": "more"})
    lines = seen(corpus, document_limit=1)
    assert lines["corpus"].startswith("ok 1 texts, the limit, ")
    assert lines["records"].startswith("mind 2 of 3 are refused: 2 text is empty.")


def test_a_corpus_that_is_not_there_is_wrong(tmp_path):
    assert seen(tmp_path / "none.jsonl")["corpus"].startswith("wrong expected the corpus")


def test_the_weights_of_a_model_are_counted_by_their_headers(tiny_model_dir):
    from safetensors.torch import load_file

    tensors = load_file(tiny_model_dir / "model.safetensors")
    assert weights_of(tiny_model_dir) == sum(tensor.numel() for tensor in tensors.values())


def test_a_model_beside_another_size_s_preset_is_pointed_out(tmp_path, tiny_model_dir):
    corpus = corpus_of(tmp_path, {"text": SUM})
    paper, small = (
        seen(corpus, is_here=True, model=str(tiny_model_dir), preset=preset)["model"]
        for preset in ("paper", "small_model")
    )
    assert """--parameters '{"preset": "small_model"}'""" in paper
    assert small.startswith("ok ")


def test_weights_that_do_not_fit_are_wrong(tmp_path, tiny_model_dir, monkeypatch):
    monkeypatch.setattr(checking, "free_main_memory", lambda: 1000)
    line = seen(corpus_of(tmp_path, {"text": SUM}), is_here=True, model=str(tiny_model_dir))["memory"]
    assert line.startswith("wrong 0.0 GiB for the weights in float32, 0.0 GiB free on cpu. Choose a smaller")


def test_the_command_ends_with_2_if_something_is_wrong(tmp_path):
    ended = CliRunner().invoke(app, ["check", str(tmp_path / "none.jsonl"), "--model", "m", "--tool", "QA"])
    assert "expected a corpus, tools and a model that a run can use, found corpus, model wrong." in str(
        ended.exception
    )


def test_a_proposer_behind_an_endpoint_is_asked_for_one_token(tmp_path, tiny_model_dir, monkeypatch):
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path / "tools"))
    corpus = corpus_of(tmp_path, {"text": SUM})
    with openai_server(continues("2")) as server:
        proposer = write_proposer_file(tmp_path / "tools", server.url)
        lines = seen(corpus, is_here=True, model=str(tiny_model_dir), proposer=proposer)
        asked = (len(server.checks), server.requests)
    assert lines["proposer"] == f"ok {MODEL} at {server.url} answers (completions, licence apache-2.0)"
    assert asked == (1, [])


def test_a_proposer_that_is_away_is_wrong(tmp_path, tiny_model_dir, monkeypatch):
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path / "tools"))
    proposer = write_proposer_file(tmp_path / "tools", "http://127.0.0.1:9/v1")
    lines = seen(
        corpus_of(tmp_path, {"text": SUM}), is_here=True, model=str(tiny_model_dir), proposer=proposer
    )
    assert lines["proposer"].startswith("wrong proposer writer: expected an answer to '1 + 1 ='")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tools", "Calculater"], "did you mean Calculator?"),
        (["--parameters", '{"sampling_treshold": 0.1}'], "did you mean sampling_threshold?"),
    ],
)
def test_a_name_with_a_slip_is_answered_with_the_name_before_the_demos_model_is_converted(
    tmp_path, monkeypatch, words, message
):
    monkeypatch.setattr(demo_model, "prepare_demo_model", lambda _: pytest.fail("converted"))
    ended = CliRunner().invoke(
        app, ["check", str(corpus_of(tmp_path, {"text": SUM})), "--model", "demo", *words]
    )
    assert message in str(ended.exception)


def test_texts_of_another_language_are_told_that_prompts_are_english(tmp_path):
    text = "Das Café in Zürich hatte viele Gäste, und über Mittag blieben fünf übrig für später."
    detail = seen(corpus_of(tmp_path, {"text": text}, {"text": f"{text} Dann kamen 3."}))["language"]
    assert detail.startswith(
        "mind 2 of 2 texts are hardly English; the prompts of the tools, and the number words"
    )


def test_nothing_is_said_of_the_language_of_english_texts(tmp_path):
    assert "language" not in seen(corpus_of(tmp_path, {"text": SUM}, {"text": "Miete: 3,50"}))
