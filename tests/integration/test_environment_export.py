"""Tasks for reinforcement learning: which there are, what a call is worth, and what TRL reads of them."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from transformers.utils import get_json_schema
from typer.testing import CliRunner

from tests.annotated_runs import AnnotatedRun, release
from toolformer_ops.__main__ import app
from toolformer_ops.config import Settings
from toolformer_ops.release.conversations import CONTINUE
from toolformer_ops.release.environment_export import FILES, export_environment
from toolformer_ops.stages.release import release_prefix
from toolformer_ops.storage.objects.publication import ObjectStore

SUM = "Out of 1400 people, 400 passed, that is 29 %."
SHOP = "It was Friday, so the shop sold 12 * 7 = 84 pens."


def write(settings: Settings) -> str:
    """The address of a release with three calls; at the place of the first the run has tried three others."""
    run = AnnotatedRun(settings, {"Calculator": 0.5, "Calendar": 0.5})
    people, shop = run.add_text(SUM), run.add_text(SHOP)
    run.add_call("Calculator", people, " 29", "400 / 1400", "0.29", saves=1.25)
    run.add_call("Calculator", people, " 29", "1400 - 400", "1000", saves=-0.5)
    run.add_call("Calculator", people, " 29", "401 / 1400", "0.29", saves=0.3125)
    run.add_call("Calculator", people, " 29", "400.0 / 1400", "0.29", saves=1.0)  # kept, and beaten
    run.add_call("Calculator", people, " passed", "400 + 1", "401", saves=0.25)
    run.add_call("Calculator", shop, " 84", "12 * 7", "84", saves=2.0)
    run.add_call("Calendar", shop, " Friday", "", "Today is Friday.", saves=0.75)
    run.complete("Calculator", "Calendar")
    return ObjectStore(settings).uri(release_prefix(release(settings, run.run_id)))


@pytest.fixture
def uri(written):
    return written.value


@pytest.fixture
def folder(settings, uri, tmp_path):
    export_environment(settings, uri, str(tmp_path / "tasks"))
    return tmp_path / "tasks"


@pytest.fixture
def tasks(folder):
    """By the kept call's input."""
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return {task["expected"]["input"]: task for task in map(json.loads, lines)}


@pytest.fixture
def modules(folder, monkeypatch):
    """The written modules, imported from their folder."""
    monkeypatch.syspath_prepend(str(folder))
    names = ("call_tasks", "for_trl")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        del sys.modules[name]


def test_each_released_call_is_a_task(tasks):
    assert set(tasks) == {"400 / 1400", "12 * 7", ""}


def test_a_task_ends_where_its_call_stands(tasks):
    [message] = tasks["400 / 1400"]["prompt"]
    assert message == {"role": "user", "content": f"{CONTINUE}Out of 1400 people, 400 passed, that is"}


def test_a_task_holds_the_kept_call_with_its_result(tasks):
    assert tasks["400 / 1400"]["expected"] == {
        "tool": "Calculator",
        "input": "400 / 1400",
        "arguments": '{"input": "400 / 1400"}',
        "result": "0.29",
        "nats": 1.25,
    }


def test_a_task_holds_the_other_calls_at_its_place_kept_or_not(tasks):
    rejected = {
        name: {(call["input"], call["result"], call["nats"]) for call in task["rejected"]}
        for name, task in tasks.items()
    }
    of_people = {("1400 - 400", "1000", -0.5), ("401 / 1400", "0.29", 0.3125), ("400.0 / 1400", "0.29", 1.0)}
    assert rejected == {"400 / 1400": of_people, "12 * 7": set(), "": set()}


@pytest.mark.parametrize(
    ("calls", "worth"),
    [
        ([("Calculator", {"input": "400 / 1400"})], 1.0),
        ([("Calculator", {"input": " 400  / 1400 "})], 1.0),
        ([("Calculator", {"input": "401 / 1400"})], 0.25),
        ([("Calculator", {"input": "1400 - 400"})], 0.0),
        ([("Calculator", {"input": "2 + 2"})], 0.0),
        ([("Calendar", {})], 0.0),
        ([("Calculator", {"input": "2 + 2"}), ("Calculator", {"input": "400 / 1400"})], 0.0),
        ([], 0.0),
    ],
    ids=["kept", "spaces", "rejected", "harmful", "untried", "another tool", "second call", "no call"],
)
def test_a_call_is_worth_its_share_of_what_the_kept_one_saves(tasks, modules, calls, worth):
    assert modules["call_tasks"].reward(tasks["400 / 1400"], calls) == worth


def test_an_environment_of_trl_answers_with_recorded_results(tasks, modules):
    task = tasks["400 / 1400"]
    environment = modules["for_trl"].environment_class(task["tools"])()
    environment.reset(**task)
    answers = [environment.Calculator(input=asked) for asked in ("401 / 1400", "400 / 1400", "1 + 1")]
    assert answers == ["0.29", "0.29", "no result"]
    assert environment.get_reward() == 0.25


def test_an_environment_begins_anew_with_each_task(tasks, modules):
    environment = modules["for_trl"].environment_class(tasks[""]["tools"])()
    environment.reset(**tasks["12 * 7"])
    environment.Calculator(input="1 + 1")
    environment.reset(**tasks[""])
    assert environment.Calendar() == "Today is Friday."
    assert environment.get_reward() == 1.0


def test_the_methods_of_an_environment_have_the_schemas_of_the_tools(tasks, modules):
    tools = tasks[""]["tools"]
    environment = modules["for_trl"].environment_class(tools)()
    read = [get_json_schema(getattr(environment, tool["function"]["name"]))["function"] for tool in tools]
    given = [tool["function"] for tool in tools]
    assert [schema["name"] for schema in read] == [schema["name"] for schema in given]
    assert [list(schema["parameters"]["properties"]) for schema in read] == [
        list(schema["parameters"].get("properties", {})) for schema in given
    ]


def test_a_folder_has_the_files_that_trainers_need(folder):
    assert {path.name for path in folder.iterdir()} == {"train.jsonl", "README.md", *FILES}


def test_the_command_says_how_many_tasks_there_are(settings, uri, tmp_path):
    out = str(tmp_path / "tasks.jsonl")
    result = CliRunner().invoke(app, ["export", "--format", "environment", uri, out])
    said = json.loads(result.stdout)
    assert (said["tasks"], said["with_rejected"], said["address"]) == (3, 1, out)


def test_trl_takes_a_step_in_the_environment(tasks, folder, modules, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    import trl
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    tokenizer.pad_token = tokenizer.eos_token
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen3.jinja").read_text(encoding="utf-8")
    read = load_dataset(
        "json", data_files=str(folder / "train.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    trainer = trl.GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(tiny_model_dir),
        args=trl.GRPOConfig(
            str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, num_generations=2,
            max_completion_length=4, use_cpu=True, report_to=[], logging_steps=1, save_strategy="no",
        ),
        train_dataset=read,
        processing_class=tokenizer,
        environment_factory=modules["for_trl"].environment_class(read[0]["tools"]),
    )  # fmt: skip
    trainer.train()
    assert [tool.__name__ for tool in trainer.tools] == ["Calculator", "Calendar"]
    assert trainer.state.log_history[0]["rewards/CallEnvironment/mean"] == 0.0
