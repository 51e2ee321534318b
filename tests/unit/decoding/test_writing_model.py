"""A real network decodes with tools: with its cache as without, in batches as alone, by `write`, `generate` and the command."""

import json
from unittest import mock

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig
from typer.testing import CliRunner

from tests.tiny_models import SHAPES
from toolformer_ops.__main__ import app
from toolformer_ops.cli import decoding
from toolformer_ops.config import Settings
from toolformer_ops.decoding.model import GeneratedSequences, WritingModel
from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt, WrittenText
from toolformer_ops.errors import EXIT_USAGE, ModelError, ToolError, UsageError, exit_code

SETTINGS = Settings(_env_file=None)  # type: ignore[call-arg]
PROMPTS = (
    "the shop had sold",
    "we meet today and",
    "people passed a test in this",
    "of them",
    "day is in year and film",
)


@pytest.fixture(scope="module")
def model(writing_model_dir):
    return WritingModel.load(SETTINGS, str(writing_model_dir), tools=("Calculator", "Calendar"))


def test_a_shared_head_changes_no_text(model):
    head, decoding = "the shop had sold ", DecodingSettings(call_start_rank=3, max_new_tokens=12)
    alone, shared = (
        model.write([Prompt(head + tail, shared_head=one) for tail in ("shirts", "a test", "film")], decoding)
        for one in ("", head)
    )
    assert [text.token_ids for text in shared] == [text.token_ids for text in alone]


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_without_tools_it_generates_what_transformers_generates(shape, tmp_path):
    place = SHAPES[shape](tmp_path / shape)
    ours = WritingModel.load(SETTINGS, str(place), tools=())
    theirs = AutoModelForCausalLM.from_pretrained(place)
    for prompt in PROMPTS[:2]:
        inputs = ours.encode([prompt])
        expected = theirs.generate(**inputs, max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert torch.equal(ours.generate(**inputs, max_new_tokens=12), expected)


def test_generate_pads_a_batch_whose_calls_it_returns_where_asked(model):
    inputs, decoding = model.encode(PROMPTS[:3]), DecodingSettings(max_new_tokens=10, call_start_rank=3)
    lengths = GenerationConfig(max_new_tokens=10)
    found = model.generate(
        **inputs, generation_config=lengths, decoding=decoding, return_dict_in_generate=True
    )
    assert isinstance(found, GeneratedSequences)
    width = inputs["input_ids"].shape[1]
    assert torch.equal(found.sequences[:, :width], inputs["input_ids"])
    written = model.write([Prompt(text) for text in PROMPTS[:3]], decoding)
    assert [text.token_ids for text in found.written] == [text.token_ids for text in written]
    for row, text in zip(found.sequences, written, strict=True):
        assert tuple(row[width:].tolist())[: len(text.token_ids)] == text.token_ids


def test_generate_streams_settled_tokens(model):
    streamer = mock.Mock()
    inputs, decoding = model.encode(PROMPTS[:1]), DecodingSettings(call_start_rank=3)
    sequences = model.generate(**inputs, streamer=streamer, max_new_tokens=10, decoding=decoding)
    assert isinstance(sequences, Tensor)
    streamer.end.assert_called_once_with()
    prompt, *new = [call.args[0] for call in streamer.put.call_args_list]
    assert torch.equal(prompt, inputs["input_ids"])
    expected = sequences[0].tolist()
    if expected[-1] == model.tokenizer.eos_token_id:
        expected.pop()
    assert torch.cat([prompt[0], *new]).tolist() == expected
    with pytest.raises(UsageError, match="batch of one"):
        model.generate(**model.encode(PROMPTS[:2]), streamer=streamer)


def test_generate_refuses_what_is_not_greedy_decoding(model):
    for name, value in (
        ("do_sample", True),
        ("num_beams", 4),
        ("repetition_penalty", 1.3),
        ("max_new_tokenz", 3),
    ):
        with pytest.raises(UsageError, match=name):
            model.generate(**model.encode(["the shop"]), **{name: value})
    with pytest.raises(UsageError, match="input_ids of shape"):
        model.generate(max_new_tokens=3)


def test_neither_unknown_tools_nor_unknown_models_are_taken(tiny_model_dir, tmp_path):
    with pytest.raises(ToolError, match="Abacus"):
        WritingModel.load(SETTINGS, str(tiny_model_dir), tools=("Abacus",))
    with pytest.raises(ModelError):
        WritingModel.load(SETTINGS, str(tmp_path / "nothing"))


def run(*arguments: str, stdin: str | None = None) -> list[str]:
    result = CliRunner().invoke(app, ["generate", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_it_prints_prompts_with_their_continuations_or_as_json_with_their_calls(writing_model_dir):
    options = "--max-tokens 12 --date 2022-11-20 --tools Calculator,Calendar --k 3"
    common = ("--model", str(writing_model_dir), *options.split())
    prompts = ["the shop had sold", "we meet today"]
    lines = [json.loads(line) for line in run(*common, "--json", stdin="\n\n".join(prompts))]
    assert [line["prompt"] for line in lines] == prompts
    calls = [call for line in lines for call in line["calls"]]
    assert calls
    assert all(
        call["seconds"] >= 0 and (call["result"] is None) != (call["reason"] is None) for call in calls
    )
    shown = run(prompts[0], *common)
    assert shown[0].startswith(prompts[0])
    assert "[Calculator(" in shown[0] or "[Calendar() -> Today is" in shown[0]
    with pytest.raises(UsageError, match="found none"):
        run(*common, stdin="\n")


def test_what_a_terminal_would_obey_is_not_printed(capsys):
    call = MadeCall("QA", "Who?", "me", None, 3, 19, 0.0)
    written = "\x1b]  [QA(Who?) -> me] \x1b[2J\x9b0m\tend"
    decoding.print_text(
        WrittenText(Prompt("A \x1b[31mred\x07 one"), written, "", (call,), (), (), 1, "length")
    )
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}
    assert "[QA(Who?) -> me]" in shown
    assert "end" in shown


def test_a_call_without_a_result_is_told_with_what_its_tool_said(capsys):
    call = MadeCall("Shop", "SELECT a", None, "query_invalid", 1, 1, 0.0, "no such column: a")
    decoding.print_text(WrittenText(Prompt("It"), " is", "", (call,), (), (), 1, "length"))
    assert capsys.readouterr().err == (
        "Shop(SELECT a): no result, the database does not understand the query: no such column: a; the text "
        "continues without it\n"
    )


def test_an_empty_prompt_is_continued_only_from_a_start_token(writing_model_dir, monkeypatch):
    folder = str(writing_model_dir)
    [line] = run("", "--json", "--model", folder, "--max-tokens", "12", "--tools", "Calculator")
    assert json.loads(line)["tokens"] > 0
    monkeypatch.setattr("toolformer_ops.language_model.tokenization.start_token_ids", lambda _: ())
    with pytest.raises(ModelError, match="prompt 2 of 2: expected a text, found an empty one") as raised:
        run("the shop", "", "--model", folder, "--tools", "Calculator")
    assert exit_code(raised.value) == EXIT_USAGE
