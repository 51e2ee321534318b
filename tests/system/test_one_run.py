"""A person fills in the form of `annotate_corpus` in a browser, and finds calls, a release, a model, a page and a report.

One run does everything: a tool of a package and one of an MCP server; release; finetuning; two suites of which one has no data, so
that the run is red. Beside its texts is a link to the passwords, and a process of it is killed.
The page is looked at again for runs with more calls, whose rows are those that stages would write: for these no task is started.
Screenshots go to the folder that RUN_PAGE_PICTURES names, else to a temporary one; those of docs/run_page.md were made so.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect, sync_playwright
from sqlalchemy import text as sql
from typer.testing import CliRunner

from tests.annotated_runs import AnnotatedRun
from tests.system.conftest import (
    ANNOTATE,
    PROBLEMS,
    RECORDS,
    held_stages,
    rows,
    stage_process,
    until,
    wait_until_ended,
)
from tests.tool_files import forget_tools
from toolformer_ops.__main__ import app
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import STATE_DIR_VARIABLE, Settings
from toolformer_ops.stages.release import release
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage import database
from toolformer_ops.storage.publication import ObjectStore
from toolformer_ops.tools.registry import PAPER_TOOLS

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-quic",
    "--disable-component-update",
    "--disable-sync",
)
MILLISECONDS = 120_000
CHOSEN = ["WordCount", "Length"]
SUITES = ["math", "lama"]
OF_WORDS = (
    "The motto of the club has three words, and the shop had sold shirts of them on a day.",
    "We meet today and the film has two words in its title, so people passed the test.",
)
"""Texts that the filter of WordCount lets pass; Length has none."""
FOLDED = {
    "What is kept": {"prune_below": "0", **{f"keep_threshold_{tool}": "0" for tool in CHOSEN}},
    "Sampling": {"sampling_threshold": "0", "max_positions": "4", "samples_per_position": "3"},
    "Finetuning": {"finetune_steps": "2", "finetune_batch": "2", "approve": ["before_finetuning"]},
    "Evaluation": {"evaluation_suites": SUITES, "evaluation_data": None},
}
"""Fields below the fold by section, chosen so that a model that knows nothing of a tool writes calls of it, and some are kept."""
NOT_IN_THE_FORM = {
    "call_prefix": "tool_name",
    "max_call_tokens": 24,
    "placebos": 0,
    "placebo_sample": 0,
    "finetune_device_batch": 2,
    "finetune_length": 64,
}
FINISHED, RUNNING = "page-finished", "page-running"
TOOL = "Calculator"
TEXTS = 80
CORPUS_VERSION = """
insert into corpus_versions
    (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, duplicates, rejected)
values (:corpus_id, 1, :texts, :texts, 0, 0, 0, 0, 1, :texts, 0, 0)
"""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def page(services: Settings, airflow: AirflowClient) -> Iterator[Page]:
    """A browser that is signed in to Airflow."""
    airflow.open_dag(ANNOTATE)
    expect.set_options(timeout=MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        opened = browser.new_page(viewport={"width": 1280, "height": 1000})
        opened.set_default_timeout(MILLISECONDS)
        opened.goto(services.airflow_url)
        opened.locator('input[name="username"]').fill(services.airflow_username)
        opened.locator('input[name="password"]').fill(services.airflow_password.get_secret_value())
        opened.get_by_role("button", name="Sign in").click()
        expect(opened.locator('input[name="password"]')).to_have_count(0)
        yield opened
        browser.close()


@pytest.fixture(scope="module")
def secrets(services: Settings) -> Path:
    """The file with the passwords."""
    return services.state_dir / "secrets.json"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("RUN_PAGE_PICTURES", tmp_path_factory.mktemp("pictures")))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# The form


def opened_form(page: Page, settings: Settings) -> Locator:
    """The dialog of the form, with the fields that every run has to think about unfolded."""
    page.goto(f"{settings.airflow_url}/dags/{ANNOTATE}")
    page.get_by_test_id("trigger-dag-button").first.click()
    form = page.get_by_role("dialog")
    expect(form.locator('input[name="element_corpus"]')).to_be_visible()
    return form


def write(form: Locator, name: str, value: str | list[str]) -> None:
    """Fill one field in, and leave it, as the form reads a number when its field is left; choose what cannot be written."""
    field = form.locator(f'input[name="element_{name}"]')
    if isinstance(value, list):
        for item in value:
            form.locator(f"#element_{name} input").first.fill(item)
            form.get_by_role("option", name=item, exact=True).click()
    else:
        field.fill(value)
        field.blur()


def pressed_trigger(form: Locator, airflow: AirflowClient) -> str:
    """The id of the run that is there then."""
    before = run_ids(airflow)
    trigger = form.get_by_role("button", name="Trigger", exact=True)
    expect(trigger).to_be_enabled()
    trigger.click()
    [run_id] = until("the run", lambda: run_ids(airflow) - before)
    return str(run_id)


def run_ids(airflow: AirflowClient) -> set[str]:
    """The runs of the DAG so far: the services are shared by all tests of a session."""
    return {run["dag_run_id"] for run in airflow.get(f"/dags/{ANNOTATE}/dagRuns", limit=100)["dag_runs"]}


def task_instances(airflow: AirflowClient, run_id: str) -> list[dict[str, Any]]:
    path = f"/dags/{ANNOTATE}/dagRuns/{quote(run_id, safe='')}/taskInstances"
    found: list[dict[str, Any]] = airflow.get(path, limit=100)["task_instances"]
    return found


def test_who_presses_trigger_sees_why_the_run_cannot_start_and_what_it_may_not_read(
    page: Page, services: Settings, airflow: AirflowClient, writing_model_dir: Path, secrets: Path
) -> None:
    form = opened_form(page, services)
    expect(form.get_by_role("button", name="Trigger", exact=True)).to_be_disabled()  # corpus and model are asked for
    write(form, "corpus", str(secrets))
    write(form, "model", str(writing_model_dir))
    run_id = pressed_trigger(form, airflow)
    reason = f"corpus: expected files that may be read, found {secrets}, which is where passwords are kept"

    # Airflow opens the run's page. Its note says why; behind the square of its first task, which is red, is the log.
    expect(page).to_have_url(re.compile("/runs/"))
    page.goto("about:blank")  # drawn in software, the page of a running DAG takes a core that the run needs
    assert wait_until_ended(airflow, ANNOTATE, run_id) == "failed"
    page.goto(f"{services.airflow_url}/dags/{ANNOTATE}/runs/{quote(run_id, safe='')}")
    expect(page.get_by_text(reason).first).to_be_in_viewport()
    page.locator(f'a[href$="/runs/{run_id}/tasks/ingest"]').first.click()
    in_the_log = page.get_by_test_id("virtualized-list").get_by_text(reason)
    expect(in_the_log.first).to_be_in_viewport()

    # It is in SQL, too, and nothing was tried twice.
    page.goto("about:blank")
    assert reason in airflow.note(ANNOTATE, run_id)
    states = {task["state"] for task in task_instances(airflow, run_id)}
    assert not {"success", "up_for_retry"} & states
    [(problem,)] = rows(services, "select problem from runs_not_started where run_id = :run", run=run_id)
    assert problem.startswith(f"failed: ingest: {reason}")


@pytest.fixture(scope="module")
def run(
    page: Page,
    services: Settings,
    airflow: AirflowClient,
    writing_model_dir: Path,
    evaluation_data: Path,
    secrets: Path,
    pictures: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """The id of the run, which has ended."""
    # 1. The form.
    corpus = tmp_path_factory.mktemp("posts")
    records = [*RECORDS, *({"text": text} for text in OF_WORDS)]
    (corpus / "posts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    (corpus / "link.jsonl").symlink_to(secrets)
    form = opened_form(page, services)
    write(form, "corpus", str(corpus))
    write(form, "model", str(writing_model_dir))
    for tool in PAPER_TOOLS:
        form.get_by_label(f"Remove {tool}").click()
    write(form, "tools", CHOSEN)
    page.screenshot(path=pictures / "form.png")
    for section, fields in FOLDED.items():
        form.get_by_role("button", name=section, exact=True).click()
        for name, value in fields.items():
            write(form, name, value or str(evaluation_data))
    form.get_by_role("button", name="Advanced Options", exact=True).click()
    form.locator(".monaco-editor").click()
    page.keyboard.press("Control+Home")
    page.keyboard.press("End")  # behind the brace that opens
    page.keyboard.insert_text(json.dumps(NOT_IN_THE_FORM).strip("{}") + ",")
    page.keyboard.press("Control+Home")
    form.get_by_role("button", name="Evaluation", exact=True).click()  # leaves the editor, which reads its text then
    run_id = pressed_trigger(form, airflow)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto("about:blank")
    # 2. The kill.
    with held_stages(services):
        killed = until("a filter at work", lambda: waiting_filter(services, run_id))
        killed.kill()
        killed.wait(30)
    # 3. A person's yes.
    until("the question", lambda: waits_for_a_yes(airflow, ANNOTATE, run_id))
    page.goto(
        f"{services.airflow_url}/dags/{ANNOTATE}/runs/{quote(run_id, safe='')}/tasks/approve_finetuning/required_actions"
    )
    approve = page.get_by_role("button", name="Approve")
    expect(approve).to_be_visible()
    page.screenshot(path=pictures / "approve.png")
    approve.click()
    until("the answer", lambda: not waits_for_a_yes(airflow, ANNOTATE, run_id))
    page.goto("about:blank")
    # 4. The end.
    wait_until_ended(airflow, ANNOTATE, run_id)
    return run_id


def waits_for_a_yes(airflow: AirflowClient, dag_id: str, run_id: str) -> bool:
    path = f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances/approve_finetuning"
    return bool(airflow.get(path)["state"] == "awaiting_input")


def waiting_filter(settings: Settings, run_id: str) -> psutil.Process | None:
    """The process that filters for WordCount, once it waits to say that it has finished a text."""
    process = stage_process("filter", "WordCount", run_id)
    waiting = {
        port for (port,) in rows(settings, "select client_port from pg_stat_activity where wait_event_type = 'Lock'")
    }
    return process if process and waiting & {open_.laddr.port for open_ in process.net_connections()} else None


def test_a_run_from_the_form_ends_with_calls_in_sql_and_a_release_and_a_model_on_s3(
    services: Settings, airflow: AirflowClient, run: str
) -> None:
    conf = airflow.get(f"/dags/{ANNOTATE}/dagRuns/{quote(run, safe='')}")["conf"]
    assert (conf["tools"], conf["keep_threshold_Length"], conf["keep_threshold_MT"]) == (CHOSEN, 0, None)
    assert NOT_IN_THE_FORM.items() <= conf.items()
    assert one(services, "select state from annotation_runs where run_id = :run", run=run) == "failed"
    [(scored,)] = rows(
        services, "select count(*) from scored_calls where run_id = :run and loss_reduction is not null", run=run
    )
    kept = rows(services, "select tool, call_text, result from kept_calls where run_id = :run", run=run)
    [(release_uri, calls)] = rows(
        services,
        "select uri, calls from run_releases join dataset_releases using (release_id) where run_releases.run_id = :run",
        run=run,
    )
    [(model_uri, without_calls)] = rows(
        services,
        "select uri, model.without_calls from run_models model join finetuned_models using (model_id) where model.run_id = :run",
        run=run,
    )
    assert scored >= len(kept) >= calls > 0
    assert not without_calls
    store = ObjectStore(services)
    for uri, ending in ((release_uri, ".parquet"), (model_uri, ".safetensors")):
        manifest = store.read_manifest(store.key_of(uri))
        assert manifest is not None
        assert any(file.name.endswith(ending) for file in manifest.files)
        assert all(store.exists(manifest.key_of(file)) for file in manifest.files)
    assert {tool for tool, _, _ in kept} == set(CHOSEN)
    for tool, text, result in kept:
        assert result == str(len(text.removeprefix(f"{tool}(").removesuffix(")").split()))


def test_the_answer_and_who_gave_it_are_in_sql_and_the_note_and_no_second_one_counts(
    services: Settings, airflow: AirflowClient, run: str
) -> None:
    name = services.airflow_username
    found = rows(services, "select step, is_approved, answered_by from approvals where run_id = :run", run=run)
    assert found == [("before_finetuning", True, name)]
    assert f"- Before finetuning: approved by {name}, " in airflow.note(ANNOTATE, run)
    with signed_in(services) as client:
        path = f"/api/v2/dags/{ANNOTATE}/dagRuns/{quote(run, safe='')}/taskInstances/approve_finetuning/-1/hitlDetails"
        assert client.patch(path, json={"chosen_options": ["Reject"], "params_input": {}}).status_code == 409
        asked = client.get(path).json()
    assert asked["chosen_options"] == ["Approve"]
    assert f"| {CHOSEN[0]} | 0 |" in asked["body"]
    assert f"/runs/{quote(run, safe='')}" in asked["body"]


def test_a_no_ends_a_run_green_before_it_trains_or_evaluates(
    services: Settings, airflow: AirflowClient, run: str, evaluation_data: Path
) -> None:
    [(release,)] = rows(services, "select release_id from run_releases where run_id = :run", run=run)
    conf = {
        "release": release,
        "approve": "before_finetuning",
        "evaluation_suites": ["math"],
        "evaluation_data": str(evaluation_data),
    }
    airflow.open_dag("finetune_release")
    airflow.trigger("finetune_release", "refused", conf)
    until("the question", lambda: waits_for_a_yes(airflow, "finetune_release", "refused"))
    of_run = "/api/v2/dags/finetune_release/dagRuns/refused/taskInstances"
    with signed_in(services) as client:
        answer = {"chosen_options": ["Reject"], "params_input": {}}
        client.patch(f"{of_run}/approve_finetuning/-1/hitlDetails", json=answer).raise_for_status()
        assert wait_until_ended(airflow, "finetune_release", "refused") == "success"
        states = {task["task_id"]: task["state"] for task in client.get(of_run).json()["task_instances"]}
    done = {"start_finetuning", "approve_finetuning", "finish_run"}
    assert {task for task, state in states.items() if state == "success"} == done
    assert {state for task, state in states.items() if task not in done} == {"skipped"}


def test_a_suite_without_data_fails_by_name_and_stops_no_other_and_what_is_not_chosen_starts_no_process(
    services: Settings, airflow: AirflowClient, run: str
) -> None:
    tasks = task_instances(airflow, run)
    by_state = {state: {task["task_id"] for task in tasks if task["state"] == state} for state in ("failed", "success")}
    assert by_state["failed"] == {"evaluation.lama", "finish_run"}
    assert by_state["success"] >= {"publish", "evaluation.math", "evaluation.report"}
    [lama] = [task for task in airflow.tasks(ANNOTATE, run, "failed") if task.task_id == "evaluation.lama"]
    assert "EvaluationDataError: " in "\n".join(airflow.log_tail(ANNOTATE, run, lama, 20))
    skipped = [task for task in tasks if task["state"] == "skipped"]
    assert {task["task_id"].partition(".")[0] for task in skipped} == {
        *PAPER_TOOLS, "Convert", "evaluation", "finetune_without_calls", "publish_without_calls", "approve_publishing",
    }  # fmt: skip
    assert [task["task_id"] for task in skipped if task["pid"]] == []  # no start of 0.9 s each
    found = rows(services, "select variant, suite, subset, inputs from evaluation_scores where run_id = :run", run=run)
    assert sorted(found) == [(variant, "math", "svamp", PROBLEMS) for variant in ("base", "disabled", "with_tools")]


def test_a_killed_stage_is_tried_again_and_each_text_is_done_once(
    services: Settings, airflow: AirflowClient, run: str
) -> None:
    tries = {task.name: task.try_number for task in airflow.tasks(ANNOTATE, run, "success")}
    assert tries["WordCount.filter [0]"] == 2
    done = rows(
        services,
        "select member.document_id, count(ledger.document_id) from run_tool_documents member "
        "left join run_tools using (run_id, tool) left join stage_ledger ledger on ledger.stage = 'filter' "
        "and ledger.recipe_id = filter_recipe_id and ledger.document_id = member.variant_id "
        "where run_id = :run and tool = 'WordCount' group by 1",
        run=run,
    )
    assert [count for _, count in done] == [1] * (len(RECORDS) + len(OF_WORDS))
    assert rows(services, "select * from micro_batch_tries") == []  # no text is suspected any more


def test_the_chat_export_of_its_release_has_the_schemas_of_the_servers(
    services: Settings, run: str, site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(STATE_DIR_VARIABLE, str(services.state_dir))
    monkeypatch.syspath_prepend(site)
    forget_tools()
    [(uri,)] = rows(
        services, "select uri from run_releases join dataset_releases using (release_id) where run_releases.run_id = :run", run=run
    )  # fmt: skip
    chat = tmp_path / "chat.jsonl"
    assert CliRunner().invoke(app, ["export", uri, str(chat)], catch_exceptions=False).exit_code == 0
    monkeypatch.undo()
    forget_tools()
    exported = [json.loads(line) for line in chat.read_text().splitlines()]
    functions = {tool["function"]["name"]: tool["function"] for tool in exported[0]["tools"]}
    asked = [call["function"] for line in exported for said in line["messages"] for call in said.get("tool_calls", ())]
    assert asked
    for function in asked:
        assert list(function["arguments"]) == functions[function["name"]]["parameters"]["required"]
    assert functions["Length"]["parameters"]["properties"] == {"phrase": {"type": "string"}}


# The page


@pytest.fixture(scope="module")
def said(page: Page) -> list[str]:
    """What the browser wrote to its console."""
    lines: list[str] = []
    page.on("console", lambda message: lines.append(message.text))
    page.set_viewport_size({"width": 1280, "height": 900})
    return lines


def wait_for(page: Page, part: str) -> None:
    """Return once the frame is at an address with this part, whole."""
    frame = "document.querySelector('iframe').contentWindow"
    page.wait_for_function(
        f"part => {frame}.location.href.includes(part) && {frame}.document.readyState === 'complete'", arg=part
    )


def opened(page: Page, settings: Settings, run_id: str) -> FrameLocator:
    """The tab of the run."""
    page.goto(f"{settings.airflow_url}/dags/{ANNOTATE}/runs/{quote(run_id, safe='')}/plugin/annotation")
    frame = page.frame_locator('iframe[title="Annotation"]')
    expect(frame.get_by_role("heading", name=run_id)).to_be_visible()
    return frame


def screenshots(page: Page, pictures: Path, name: str) -> None:
    """The page as a laptop shows it, light, and as a large screen does, dark."""
    page.screenshot(path=pictures / f"{name}.png")
    page.set_viewport_size({"width": 1920, "height": 1080})
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=pictures / f"{name}-1920.png")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


def one(settings: Settings, statement: str, **values: object) -> Any:
    """The one value of a statement."""
    [(value,)] = rows(settings, statement, **values)
    return value


def test_a_red_run_says_what_its_failed_task_said_and_has_its_report(
    page: Page, services: Settings, run: str, said: list[str], pictures: Path
) -> None:
    frame = opened(page, services, run)
    expect(frame.get_by_text("This run is red.")).to_be_visible()
    kept = one(services, "select count(*) from kept_calls where run_id = :run", run=run)
    expect(frame.locator("#total-kept")).to_have_text(f"{kept:,}")
    screenshots(page, pictures, "red")
    # 1. The report of its evaluations.
    frame.get_by_role("link", name="Evaluation").click()
    report = frame.frame_locator(f'iframe[src*="reports/{ANNOTATE}/"]')
    expect(report.get_by_role("heading", name=run)).to_be_visible()
    # 2. A link leads out of the frame, to Airflow itself.
    failed = opened(page, services, run).locator("[data-failed-tasks] .notice").filter(has_text="lama").first
    failed.get_by_role("link", name="Log of the task").click()
    page.wait_for_url(f"**/dags/{ANNOTATE}/runs/**/tasks/**")  # the window itself, not the frame
    assert [message for message in said if "Content Security Policy" in message and "toolformer" in message] == []


def test_the_report_is_on_s3_and_names_what_is_lacking_for_who_is_signed_in(services: Settings, run: str) -> None:
    report = ObjectStore(services).get(f"reports/{run}/index.html").decode("utf-8")
    assert "<strong>Not evaluated:</strong> lama." in report
    assert "svamp" in report
    assert f"n = {PROBLEMS}" in report
    assert "Loss in nats a token by optimiser step" in report
    assert report.count('class="curve"') > 0
    address = f"{services.airflow_url}/toolformer/reports/{ANNOTATE}/{quote(run, safe='')}"
    assert httpx.get(address).status_code == 401
    with signed_in(services) as client:
        answer = client.get(address)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        link = f"/api/v2/dags/{ANNOTATE}/dagRuns/{quote(run, safe='')}/taskInstances/evaluation.report/links"
        assert client.get(link).json()["extra_links"] == {"Evaluation report": address}


def signed_in(settings: Settings) -> httpx.Client:
    credentials = {"username": settings.airflow_username, "password": settings.airflow_password.get_secret_value()}
    token = httpx.post(f"{settings.airflow_url}/auth/token", json=credentials, timeout=60).json()["access_token"]
    return httpx.Client(base_url=settings.airflow_url, headers={"Authorization": f"Bearer {token}"}, timeout=60)


@pytest.fixture(scope="module")
def written(services: Settings, run: str, small_corpus: Path) -> Iterator[None]:
    """DAG runs that ended well and that wait, over texts with two calls each, of which the second saves the more the later its
    text comes; no task is started.
    """
    of_dag = f"/api/v2/dags/{ANNOTATE}"
    with signed_in(services) as client:
        client.patch(of_dag, json={"is_paused": True}).raise_for_status()
        for run_id, state in ((FINISHED, "success"), (RUNNING, "running")):
            conf = {"corpus": str(small_corpus), "model": "no-such-model", "tools": [TOOL]}
            body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
            client.post(f"{of_dag}/dagRuns", json=body).raise_for_status()
            rows_of = AnnotatedRun(services, {TOOL: 0.25}, run_id=run_id, prune_below=0.0)
            for number in range(TEXTS):
                text = (
                    f"The shop had {number + 200} shirts at the start of the week, as it says on page {number} of the book. "
                    f"It sold {number} of them on day {number}, so it has 200 left for the season that comes."
                )
                address = f"https://shop.example/2023/01/{1 + number % 28:02}/shirts-{number}"
                document = rows_of.add_text(text, address)
                saves = -0.25 - number / 100
                rows_of.add_call(TOOL, document, "of them", f"{number} / 7", f"{number / 7:.2f}", saves=saves)
                rows_of.add_call(TOOL, document, "200 left", f"{number + 200} - {number}", "200", saves=number / 50)
            rows_of.complete(TOOL, documents=rows_of.documents[: TEXTS // 2] if state == "running" else None)
            if state == "success":
                with database.transaction(rows_of.engine) as connection:
                    connection.execute(sql(CORPUS_VERSION), {"corpus_id": rows_of.corpus_id, "texts": TEXTS})
                release(services, run_id)
                finish_run(services, run_id, state)
                client.patch(f"{of_dag}/dagRuns/{run_id}", json={"state": state}).raise_for_status()
        yield
        for run_id in (FINISHED, RUNNING):
            client.delete(f"{of_dag}/dagRuns/{run_id}")
        client.patch(of_dag, json={"is_paused": False})


def test_a_finished_run_shows_the_numbers_of_sql(
    page: Page, services: Settings, written: None, said: list[str], pictures: Path
) -> None:
    in_run = {"run": FINISHED, "tool": TOOL}
    scored = one(services, "select count(*) from scored_calls where run_id = :run", run=FINISHED)
    kept = one(services, "select count(*) from kept_calls where run_id = :run", run=FINISHED)
    # 1. The run.
    frame = opened(page, services, FINISHED)
    expect(frame.locator("#total-kept")).to_have_text(f"{kept:,}")
    expect(frame.locator("#total-scored")).to_have_text(f"{scored:,}")
    screenshots(page, pictures, "run")
    # 2. Its calls, to the last page.
    frame.get_by_role("link", name="Calls", exact=True).click()
    wait_for(page, "/toolformer/calls")  # the run has a table of its best calls
    rows = frame.locator("table.calls tbody tr")
    expect(rows.first).to_be_visible()
    page.screenshot(path=pictures / "calls.png")
    seen = rows.count()
    while frame.get_by_role("link", name="Next page").count():
        first = rows.first.inner_html()
        frame.get_by_role("link", name="Next page").click()
        expect(frame.get_by_role("link", name="First page")).to_be_visible()
        shown = "document.querySelector('iframe').contentDocument?.querySelector('table.calls tbody tr')?.innerHTML"
        page.wait_for_function(f"before => {shown} && {shown} !== before", arg=first)
        seen += rows.count()
    assert seen == scored > 50
    # 3. Filters.
    frame.locator('select[name="status"]').select_option("below")
    wait_for(page, "status=below")
    below = one(
        services, "select count(*) from candidates where run_id = :run and outcome = 'below_threshold'", run=FINISHED
    )
    if below:
        expect(rows).to_have_count(min(below, 50))
    else:
        expect(frame.get_by_text("There is no such call.")).to_be_visible()
    frame.locator('select[name="status"]').select_option("scored")
    wait_for(page, "status=scored")
    expect(rows).to_have_count(50)
    frame.locator('input[name="contains"]').fill("on day 41,")
    frame.get_by_role("button", name="Show").click()
    wait_for(page, "contains=on")
    of_text = one(
        services,
        "select count(*) from scored_calls join documents using (document_id) "
        "where run_id = :run and strpos(documents.text, 'on day 41,') > 0",
        run=FINISHED,
    )
    assert 0 < of_text < 50
    expect(rows).to_have_count(of_text)
    # 4. One call.
    best = one(
        services,
        "select max(loss_reduction) from scored_calls join documents using (document_id) "
        "where run_id = :run and strpos(documents.text, 'on day 41,') > 0",
        run=FINISHED,
    )
    rows.first.get_by_role("link").click()
    expect(frame.locator("#saved")).to_have_text(f"{best:.2f}".replace("-", "\u2212"))
    expect(frame.locator("mark.here")).to_have_count(1)
    page.screenshot(path=pictures / "call.png")
    # 5. Another threshold.
    frame.get_by_role("link", name="Thresholds", exact=True).click()
    wait_for(page, "/toolformer/thresholds")  # whole: its script sends what the slider says
    frame.locator('input[type="range"]').fill("0.5")
    at_half = one(services, "select count(*) from kept_calls_at(:run, :tool, 0.5)", **in_run)
    expect(frame.locator(f'[data-tool="{TOOL}"] [data-count="calls"]')).to_contain_text(f"{at_half:,}")
    expect(frame.get_by_role("heading", name=f"{TOOL}: go out")).to_be_visible()
    page.screenshot(path=pictures / "thresholds.png")
    # 6. What changed; the run asked for no evaluation.
    frame.get_by_role("link", name="Changes", exact=True).click()
    expect(frame.get_by_text("compared with")).to_be_visible()
    page.screenshot(path=pictures / "changes.png")
    expect(frame.get_by_role("link", name="Evaluation", exact=True)).to_have_count(0)
    # 7. A link leads out of the frame, to Airflow itself.
    assert [message for message in said if "Content Security Policy" in message and "toolformer" in message] == []


def test_a_running_run_shows_how_far_it_is(page: Page, services: Settings, written: None, pictures: Path) -> None:
    frame = opened(page, services, RUNNING)
    expect(frame.locator("h1 .state")).to_have_text("running")
    progress = "select done || ' of ' || total from annotation_progress where run_id = :run and stage = :stage"
    for stage in ("filter", "sample", "score"):
        cell = frame.locator(f'[data-stage="{TOOL}.{stage}"]')
        expect(cell).to_contain_text(one(services, progress, run=RUNNING, stage=stage))
    screenshots(page, pictures, "running")


def test_the_navigation_leads_to_the_calls_of_each_run(
    page: Page, services: Settings, written: None, pictures: Path
) -> None:
    page.goto(f"{services.airflow_url}/plugin/calls")
    frame = page.frame_locator('iframe[title="Calls"]')
    for run_id in (RUNNING, FINISHED):
        expect(frame.locator('select[name="of"]')).to_be_visible()
        wait_for(page, "/toolformer/calls")  # whole: its script sends the form
        frame.locator('select[name="of"]').select_option(run_id)
        wait_for(page, f"of={run_id}")
        expect(frame.get_by_role("heading", name=run_id)).to_be_visible()
    for width, scheme in ((800, "light"), (1920, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.screenshot(path=pictures / f"calls-{width}.png")


def test_a_call_of_a_release_is_judged(page: Page, services: Settings, written: None, pictures: Path) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{services.airflow_url}/plugin/review")
    frame = page.frame_locator('iframe[title="Review"]')
    release_id = one(services, "select release_id from run_releases where run_id = :run", run=FINISHED)
    frame.get_by_role("link", name=release_id).first.click()
    wait_for(page, release_id)
    frame.get_by_role("button", name="Review").click()
    expect(frame.get_by_text(" judged.").first).to_be_visible()
    wait_for(page, "/toolformer/")
    page.screenshot(path=pictures / "judged-in-airflow.png")
    judgements = "select count(*) from judgements where verdict = 'useful'"
    assert one(services, judgements) == 0
    frame.get_by_role("button", name="useful").click()
    expect(frame.get_by_text("1 of ").first).to_be_visible()
    assert one(services, judgements) == 1


def test_the_corpora_lead_to_the_release(page: Page, services: Settings, written: None, pictures: Path) -> None:
    page.goto(f"{services.airflow_url}/plugin/corpora")
    frame = page.frame_locator('iframe[title="Corpora and releases"]')
    release_id = one(services, "select release_id from run_releases where run_id = :run", run=FINISHED)
    frame.get_by_role("link", name=release_id).first.click()
    expect(frame.locator("#fetch")).to_contain_text(f"toolformer-ops download s3://toolformer/releases/{release_id}")
    page.screenshot(path=pictures / "release.png")


def test_nobody_sees_it_without_signing_in(services: Settings, written: None) -> None:
    of_run = f"dag_id={ANNOTATE}&run_id={FINISHED}"
    for path in (
        "run",
        "calls",
        "call",
        "thresholds",
        "changes",
        "evaluation",
        "assets/page.js",
        "no/such/page",
        f"reports/{ANNOTATE}/x",
    ):
        answer = httpx.get(f"{services.airflow_url}/toolformer/{path}?{of_run}", timeout=60)
        assert answer.status_code == 401, path
        assert TOOL not in answer.text


def test_a_run_that_a_person_ends_is_closed(services: Settings, airflow: AirflowClient, written: None) -> None:
    airflow._request("PATCH", f"/dags/{ANNOTATE}/dagRuns/{RUNNING}", json={"state": "failed"})  # as the UI does
    until(
        "its end",
        lambda: one(services, "select state from annotation_runs where run_id = :run", run=RUNNING) == "failed",
    )


def test_nothing_that_these_runs_leave_holds_a_password(
    services: Settings, airflow: AirflowClient, run: str, secrets: Path
) -> None:
    passwords = [value for name, value in json.loads(secrets.read_text()).items() if name != "s3_access_key"]
    assert len(passwords) >= 10
    tables = [table for (table,) in rows(services, "select tablename from pg_tables where schemaname = 'public'")]
    left = {table: str(rows(services, f'select * from "{table}"')) for table in tables}
    refused = rows(services, "select reason, records from rejected_records where file_uri like '%link.jsonl'")
    assert refused == [("outside_corpus", 1)]
    store = ObjectStore(services)
    left |= {key: store.get(key).decode(errors="replace") for key in store.list("")}
    left |= {
        str(path): path.read_text(errors="replace") for path in services.state_dir.rglob("*.log") if path.is_file()
    }
    left["runs"] = str(airflow.get("/dags/~/dagRuns", limit=100))
    assert any(name.endswith(".log") for name in left)
    assert any(name.endswith("index.html") for name in left)
    assert [name for name, content in left.items() if any(password in content for password in passwords)] == []
