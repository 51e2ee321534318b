"""A run whose calls a model behind an endpoint proposes: the run's own model finds the places and judges."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.annotated_files import annotate_file
from tests.openai_server import (
    MODEL,
    Response,
    continues,
    openai_server,
    text_before_call,
    write_proposer_file,
    written,
)
from tests.run_sql import run_sql
from toolformer_ops.annotation.candidates import annotation_prompt
from toolformer_ops.audit.running import audit
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, ModelError
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.local.ports import choose_ports
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.annotating import annotate_stage
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import start_run
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import get_tool

TOOL = "Calculator"
TEXTS = [
    "Of 1400 participants, 400 (or 29%) passed the test; 1000 did not.",
    "The shop had 520 shirts, sold 187 of them: 333 are left today, he says, and 7 more.",
    "The farm has 12 cows and 30 sheep, 42 animals in all, and 40 of them are old.",
]
NUMBERS = {"max_positions": 3, "samples_per_position": 2, "sampling_threshold": 0.0, "max_call_tokens": 12}
KEEPS_ALL = {"placebos": 0, "placebo_sample": 0, "prune_below": 0.0, "keep_thresholds": {TOOL: 0.0}}
CALLS = (
    "select c.document_id, c.position_token, c.position_probability, c.call_text, c.sample_count, l.loss_with_result "
    "from candidate_calls c join run_tools t using (sampling_recipe_id) join call_losses l on l.call_id = c.call_id "
    "and l.scoring_recipe_id = t.scoring_recipe_id where t.run_id = :run order by 1, 2, 4"
)
PARTS = {"520": "520 - 187)", "1400": "400 / 1400)", "cows": "12 + 30)"}
"""A word of each text, and what the model writes there."""


def knows_sums(body: dict[str, Any]) -> Response:
    """A model that continues text: at every place of a text its sum, for every second sample another."""
    asked = json.dumps(body).rpartition("Input:")[2]
    [call] = [call for word, call in PARTS.items() if word in asked] or ["2)"]
    is_second = body.get("seed", 0) % 2
    return written(f"Calculator({call}" if not is_second else "Calculator(1 + 1)")


@pytest.fixture
def server():
    with openai_server(knows_sums) as running:
        yield running


@pytest.fixture
def here(settings, tmp_path):
    """Settings with a folder for the files of proposers, and little patience."""
    changes = {"tools_dir": tmp_path / "tools", "cache_dir": tmp_path / "cache", "outage_seconds": 0.2}
    return settings.model_copy(update=changes)


@pytest.fixture
def corpus(here, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    ingest_corpus(here, str(path))
    return path


@dataclasses.dataclass
class Factory:
    """Starts and annotates runs over the corpus, with the tiny model as judge."""

    settings: Settings
    corpus: Path
    model: Path
    proposer: str

    def choices(self, **changes: Any) -> RunChoices:
        given = {
            "corpus": str(self.corpus),
            "model": str(self.model),
            "tools": [TOOL],
            "proposer": self.proposer,
        }
        return RunChoices.parse(given | KEEPS_ALL | NUMBERS | changes)

    def start(self, run_id: str, **changes: Any) -> None:
        start_run(self.settings, run_id, self.choices(**changes))
        filter_stage(self.settings, run_id, TOOL)

    def annotate(self, run_id: str, **changes: Any) -> list[Any]:
        self.start(run_id, **changes)
        annotate_stage(self.settings, run_id, TOOL, "0/1")
        return self.calls(run_id)

    def calls(self, run_id: str) -> list[Any]:
        return [tuple(row) for row in run_sql(self.settings, CALLS, run=run_id)]

    def forget_work(self) -> None:
        """Delete what was sampled, executed and scored."""
        run_sql(
            self.settings,
            "select delete_work(recipe, array(select document_id from documents)) from run_tools, "
            "unnest(array[sampling_recipe_id, execution_recipe_id, scoring_recipe_id]) recipe",
        )

    def counts(self, run_id: str) -> Counter[str]:
        rows = run_sql(
            self.settings,
            "select counts from micro_batches where run_id = :run and stage = 'sample'",
            run=run_id,
        )
        return sum((Counter(row.counts) for row in rows), Counter())


@pytest.fixture
def factory(here, corpus, tiny_model_dir, server):
    proposer = write_proposer_file(here.tools_folder, server.url)
    return Factory(here, corpus, tiny_model_dir, proposer)


def likeliest(model: Path, text: str) -> dict[int, float]:
    """Of a text the places that the run's own model finds, each with its probability."""
    positions = LanguageModel.load(str(model)).find_positions(
        annotation_prompt(get_tool(TOOL)), [text], at_most=3, threshold=0.0
    )
    return {position.char: position.probability for position in positions[0]}


# What a run does


def test_the_runs_own_model_finds_the_places(factory, server, tiny_model_dir):
    factory.annotate("r")
    asked: dict[str, set[str]] = {text: set() for text in TEXTS}
    for body in server.requests:
        [text] = [text for text in TEXTS if text in body["prompt"]]
        asked[text].add(text_before_call(body))
    found = {text: {text[:char].strip() for char in likeliest(tiny_model_dir, text)} for text in TEXTS}
    assert asked == found


def test_the_endpoints_calls_are_judged_by_the_runs_own_model(factory, tiny_model_dir):
    calls = factory.annotate("r")
    assert {call for _, _, _, call, _, _ in calls} == {f"Calculator({part}" for part in PARTS.values()} | {
        "Calculator(1 + 1)"
    }
    probabilities = {
        probability for text in TEXTS for probability in likeliest(tiny_model_dir, text).values()
    }
    assert {probability for _, _, probability, _, _, _ in calls} == probabilities
    assert all(loss > 0 for *_, loss in calls)
    assert not audit(factory.settings, "run", "r", sample=10).findings


def test_each_sample_is_counted(factory):
    factory.annotate("r")
    counts = factory.counts("r")
    assert (counts["positions"], counts["samples"], counts["candidates"]) == (9, 18, 18)


def test_the_same_rows_come_of_answers_that_were_kept(factory, server):
    first = factory.annotate("r")
    asked = len(server.requests)
    factory.forget_work()
    server.script = continues("Calculator(9 + 9)")
    assert factory.calls("r") == []
    annotate_stage(factory.settings, "r", TOOL, "0/1")
    assert factory.calls("r") == first
    assert len(server.requests) == asked


def test_a_run_with_another_temperature_asks_anew(factory, server):
    factory.annotate("r")
    asked = len(server.requests)
    factory.annotate("hotter", temperature=1.5)
    assert len(server.requests) == 2 * asked


def test_after_a_server_that_died_a_restart_asks_only_the_rest(factory, server):
    undisturbed, asked = factory.annotate("r"), len(server.requests)
    factory.forget_work()
    run_sql(factory.settings, "delete from proposer_answers")
    server.requests.clear()
    server.script = lambda body: knows_sums(body) if len(server.requests) <= 5 else Response(status=503)
    with pytest.raises(ModelError, match="503"):
        annotate_stage(factory.settings, "r", TOOL, "0/1")
    answered = run_sql(factory.settings, "select count(*) from proposer_answers")[0][0]
    assert 0 < answered <= 5
    server.requests.clear()
    server.script = knows_sums
    annotate_stage(factory.settings, "r", TOOL, "0/1")
    assert len(server.requests) == asked - answered
    assert factory.calls("r") == undisturbed


def test_a_chat_proposes_where_its_answer_has_calls(factory, server):
    def answers(body: dict[str, Any]) -> Response:
        text = body["messages"][-1]["content"].rpartition("Input: ")[2].removesuffix("\nOutput:")
        if "cows" in text:
            return written(text.replace("cows", "cattle"))
        return written(
            text.replace(" 333", " [Calculator(520 - 187)] 333").replace(" passed", " [QA(x)] passed")
        )

    server.script = lambda body: (
        written("2") if "max_tokens" in body and body["max_tokens"] == 1 else answers(body)
    )
    factory.proposer = write_proposer_file(
        factory.settings.tools_folder, server.url, name="talker", api="chat"
    )
    calls = factory.annotate("r")
    assert [(call, count) for _, _, _, call, count, _ in calls] == [("Calculator(520 - 187)", 2)]
    counts = factory.counts("r")
    assert counts["answer_changes_text"] == 4
    assert counts["positions"] == 1


# What a run is refused for


def test_a_wrong_endpoint_starts_no_run(factory, server):
    server.script = lambda _: Response(b"who are you?", 401)
    with pytest.raises(ModelError, match="Correct the secret"):
        factory.start("r")
    assert run_sql(factory.settings, "select count(*) from annotation_runs")[0][0] == 0
    assert server.requests == []


def test_a_file_that_changed_ends_the_stage(factory, server):
    factory.start("r")
    write_proposer_file(factory.settings.tools_folder, server.url, model="maker/other")
    with pytest.raises(ConfigurationError, match="was started with the model endpoint:maker/writer@"):
        annotate_stage(factory.settings, "r", TOOL, "0/1")


# What is stored of it


def test_the_address_is_in_no_recipe(factory, server):
    factory.start("r")
    with openai_server(knows_sums) as other:
        factory.proposer = write_proposer_file(factory.settings.tools_folder, other.url, name="second")
        factory.start("s")
    recipes = run_sql(factory.settings, "select distinct sampling_recipe_id from run_tools")
    assert len(recipes) == 1


def test_the_proposer_has_its_model_with_licence_within_days(factory):
    factory.annotate("r")
    engine = database.connect(factory.settings)
    [recipe] = run_sql(
        factory.settings, "select definition ->> 'proposer' as proposer from recipes where stage = 'sample'"
    )
    [row] = database.fetch_all(engine, queries.proposers.of_run, run_id="r", proposer=recipe.proposer)
    [today] = run_sql(factory.settings, "select cast(now() at time zone 'utc' as date)")
    assert tuple(row) == (MODEL, "apache-2.0", today[0], today[0])


# On a file, without services


def test_a_file_is_annotated_without_a_second_question(factory, server):
    stored = factory.annotate("r")
    server.requests.clear()

    def lines() -> list[tuple[object, ...]]:
        values = {"proposer": factory.proposer} | KEEPS_ALL | NUMBERS
        calls = annotate_file(factory.settings, factory.corpus, TOOL, str(factory.model), values)
        return [(call["position_token"], call["call"], round(call["loss_with_result"], 4)) for call in calls]

    first = lines()
    assert sorted(first) == sorted((token, call, round(loss, 4)) for _, token, _, call, _, loss in stored)
    asked = len(server.requests)
    assert asked == 18
    assert lines() == first
    assert len(server.requests) == asked


# A real server


@pytest.fixture
def real_server(tiny_model_dir, tmp_path):
    """`transformers serve` with the tiny model."""
    pytest.importorskip("openai", reason="transformers serve needs the package openai (tests.lock)")
    port = choose_ports("page")["page"]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(tiny_model_dir)]
    log = tmp_path / "serve.log"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"],
            stdout=output, stderr=output, env=environment,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                if httpx.get(f"{address}/health").status_code == 200:
                    break
            except httpx.HTTPError:
                assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield f"{address}/v1"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_a_real_server_proposes_what_its_model_writes(factory, real_server, tiny_model_dir):
    factory.proposer = write_proposer_file(
        factory.settings.tools_folder, real_server, name="real", model=str(tiny_model_dir), concurrency=2
    )
    factory.annotate("r", call_prefix="tool_name", max_call_tokens=8)
    counts = factory.counts("r")
    assert (counts["positions"], counts["samples"]) == (9, 18)
    replies = run_sql(factory.settings, "select reply from proposer_answers")
    assert len(replies) == 18
    assert all(len(row.reply["writings"]) == 1 and row.reply["writings"][0]["text"] for row in replies)
