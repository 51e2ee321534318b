"""lm_eval with decoding with tools as its model: its numbers are those of `toolformer-ops evaluate` on the same inputs."""

import functools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from tests.system import writing_model
from toolformer_ops.__main__ import app
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt, WrittenText
from toolformer_ops.errors import ToolError, UsageError

lm_harness = pytest.importorskip("toolformer_ops.evaluation.lm_harness", reason="needs lm_eval: make install")
tasks = pytest.importorskip("lm_eval.tasks")
MATH_TASK = Path(str(lm_harness.__file__)).with_name("harness_tasks") / "toolformer_math.yaml"
LESSONS = [
    f"the shop had sold {n} shirts The answer is [Calculator({n} + 5) -> 7] {n}." for n in range(2, 100)
] * 5


@pytest.fixture(autouse=True)
def light_harness(tmp_path, monkeypatch):
    """Without the index of its thousands of tasks, and without a list of all packages: nine CPU seconds a run."""
    monkeypatch.setattr(tasks, "TaskManager", functools.partial(tasks.TaskManager, include_defaults=False))
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.argv", [])


def write_gsm8k(folder: Path, answers: Sequence[str], name: str = "test.jsonl") -> str:
    lines = [
        {"question": f"the shop had sold {20 + at} shirts", "answer": f"#### {a}"}
        for at, a in enumerate(answers)
    ]
    (folder / "gsm8k").mkdir(exist_ok=True)
    (folder / "gsm8k" / name).write_text("\n".join(map(json.dumps, lines)))
    return str(folder / "gsm8k" / name)


def harness(out: Path, model: Path, task: Path, tools: str, *more: str) -> tuple[dict[str, Any], list[Any]]:
    command = [
        "lm-eval",
        "--",
        "--model",
        "toolformer",
        "--model_args",
        f"pretrained={model},tools={tools},start=trained",
        *more,
    ]
    command += ["--tasks", str(task), "--output_path", str(out), "--log_samples"]
    CliRunner().invoke(app, command, catch_exceptions=False)
    [results], [samples] = out.rglob("results_*.json"), out.rglob("samples_*.jsonl")
    return json.loads(results.read_text())["results"][task.stem], [*map(json.loads, samples.open())]


def test_a_suite_has_the_same_number_in_the_harness(tmp_path, monkeypatch):
    def evaluated(*answers: str) -> tuple[float, list[Any]]:
        write_gsm8k(tmp_path, answers)
        command = [
            "evaluate",
            "--model",
            str(model),
            "--data",
            str(tmp_path),
            "--suite",
            "math:gsm8k",
            "--json",
        ]
        command += ["--tool", "Calculator", "--k", k, "--out", str(tmp_path / "inputs")]
        found = CliRunner().invoke(app, command, catch_exceptions=False)
        return json.loads(found.stdout)["scores"][0]["score"], [
            *map(json.loads, (tmp_path / "inputs").open())
        ]

    monkeypatch.setattr(writing_model, "lessons", lambda count, **_: LESSONS[:count])
    model = writing_model.save_model_that_writes_calls(tmp_path / "model")
    for tools, k in ("Calculator", "10"), ("", "0"):
        # Right is what the model writes, but in the last of four.
        share, inputs = evaluated(
            *[found["predicted"] for found in evaluated("0", "0", "0", "0")[1]][:3], "1000"
        )
        scores, samples = harness(
            tmp_path / f"out-{k}", model, MATH_TASK, tools, "--metadata", f"data={tmp_path}"
        )
        assert scores["share_correct,none"] == share == 0.75
        assert [sample["share_correct"] for sample in samples] == [found["correct"] for found in inputs]
        assert any(found["calls"] for found in inputs) == bool(tools)


@pytest.mark.parametrize(("said", "share"), [("#### {}", 1.0), ("#### 1{}", 0.0)])
def test_the_harness_own_gsm8k_scores_who_is_right(tiny_model_dir, tmp_path, monkeypatch, said, share):
    def write(_: Any, prompts: Sequence[Prompt], decoding: DecodingSettings) -> list[WrittenText]:
        assert decoding == DecodingSettings(max_new_tokens=256, stops=("Question:", "</s>", "<|im_end|>"))
        assert {one.text.count("Question:") for one in prompts} == {
            6
        }  # "... had sold 20 shirts\nAnswer:", after five
        texts = [
            f" So\n{said.format(one.text.split()[-3])}\n\nQuestion: 5 + 5?\nAnswer: #### 10"
            for one in prompts
        ]
        return [
            WrittenText(one, "", text, (), (), (), 3, "stop")
            for one, text in zip(prompts, texts, strict=True)
        ]

    monkeypatch.setattr(WritingModel, "write", write)
    files = {
        split: write_gsm8k(tmp_path, ["20", "21", "22", "23", "24", "25"], split)
        for split in ("train", "test")
    }
    task, theirs = tmp_path / "gsm8k_here.yaml", Path(str(tasks.__file__)).with_name("gsm8k") / "gsm8k.yaml"
    local = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    task.write_text(json.dumps({"include": str(theirs), "task": task.stem} | local))
    scores, _ = harness(tmp_path / "out", tiny_model_dir, task, "Calculator+Calendar")
    assert [scores[f"exact_match,{name}"] for name in ("strict-match", "flexible-extract")] == [share, share]


def requests(*pairs: tuple[str, ...]) -> list[Any]:
    return [SimpleNamespace(args=pair) for pair in pairs]


def without_start_token(model: Path, folder: Path) -> Path:
    """A copy of the model whose tokenizer puts nothing before a text, as those of GPT-2, Qwen and SmolLM2."""
    shutil.copytree(model, folder)
    description = json.loads((folder / "tokenizer.json").read_text())
    description["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(description))
    configuration = json.loads((folder / "tokenizer_config.json").read_text())
    configuration |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    return folder


@pytest.fixture(params=["with a start token", "without a start token"])
def model_of_both_kinds(request, tiny_model_dir, tmp_path):
    if request.param == "with a start token":
        return tiny_model_dir
    return without_start_token(tiny_model_dir, tmp_path / "plain")


PAIRS = [("The shop had", " 520 shirts"), ("Out of 1400 people ", "400 passed"), ("", "The film is good")]


def test_likelihoods_are_those_of_the_harness_own_models(model_of_both_kinds):
    from lm_eval.models.huggingface import HFLM

    theirs = HFLM(pretrained=str(model_of_both_kinds), device="cpu", batch_size=1, dtype="float32")
    ours = lm_harness.ToolformerLM(str(model_of_both_kinds))
    expected = [nats for nats, _ in theirs.loglikelihood(requests(*PAIRS), disable_tqdm=True)]
    assert [nats for nats, _ in ours.loglikelihood(requests(*PAIRS))] == pytest.approx(expected, abs=1e-4)
    rolling = requests(*((context + text,) for context, text in PAIRS))
    expected = theirs.loglikelihood_rolling(rolling, disable_tqdm=True)
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(expected, abs=1e-4)


def test_a_text_starts_as_the_model_was_trained_on_request(tiny_model_dir, tmp_path):
    plain = str(without_start_token(tiny_model_dir, tmp_path / "plain"))
    trained = lm_harness.ToolformerLM(plain, start="trained")
    as_harness = lm_harness.ToolformerLM(plain)
    ids = trained.tok_encode("The shop")
    assert ids == [trained.prefix_token_id, *as_harness.tok_encode("The shop")]


def test_another_start_is_refused(tiny_model_dir):
    with pytest.raises(UsageError, match="expected start to be one of trained, tokenizer, found bos"):
        lm_harness.ToolformerLM(str(tiny_model_dir), start="bos")


def test_likelihoods_are_those_of_a_plain_pass(tiny_model_dir, monkeypatch):
    def asked(*arguments: Any) -> list[Any]:
        return [SimpleNamespace(args=arguments)]

    lm = lm_harness.ToolformerLM(str(tiny_model_dir), tools="Calculator", start="trained")
    network, tokenizer = (
        one.from_pretrained(tiny_model_dir) for one in (AutoModelForCausalLM, AutoTokenizer)
    )
    [best] = lm._model.write([Prompt("The shop had")], DecodingSettings(max_new_tokens=1, call_start_rank=1))
    for context, text in (
        ("The shop had", " 520 shirts"),
        ("The shop had", best.text),
        ("", "The film is [QA("),
    ):
        ids, first = (
            tokenizer(context + text, return_tensors="pt").input_ids,
            len(tokenizer(context).input_ids),
        )
        log_probs = (
            network(ids).logits[0, first - 1 : -1].log_softmax(dim=-1).detach()
        )  # (tokens, vocabulary)
        [found] = lm.loglikelihood(asked(context, text))
        nats = pytest.approx(float(log_probs.gather(1, ids[0, first:, None]).sum()), abs=1e-3)
        assert found == (nats, text == best.text)
    assert lm.loglikelihood_rolling(asked(text)) == [found[0]]
    assert lm.generate_until(asked("The shop had sold 187 of them. " * 400, {"until": "."})) == [
        ""
    ]  # no room
    with pytest.raises(UsageError, match="greedy decoding"):
        lm.generate_until(asked("1 + 1 is", {"do_sample": True, "temperature": 0.7}))
    with pytest.raises(UsageError, match="found tool"):
        lm_harness.ToolformerLM("", tool="Calculator")
    call = MadeCall("Calculator", "1", None, "tool_not_available", 0, 0, 0.1)
    monkeypatch.setattr(
        lm._model, "write", lambda *_: [WrittenText(Prompt(""), "", "", (call,), (), (), 1, "stop")]
    )
    with pytest.raises(ToolError, match="the task is not scored, since Calculator is down"):
        lm.generate_until(asked("1 + 1 is", {}))
