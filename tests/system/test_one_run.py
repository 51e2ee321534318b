"""A person fills in the form of `annotate_corpus` in a browser, and finds calls, a release, a model, a page and a report.

One run does everything, in pods if this machine can run a cluster: a tool of the paper and one of an MCP
server; release; a person's yes; finetuning; two suites of which one has no data, so that the run is red. One
of its pods is evicted.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect, sync_playwright

from tests.annotated_runs import AnnotatedRun
from tests.kubernetes.cluster import PodRecord, TestCluster
from tests.system.conftest import (
    ANNOTATE,
    CACHE_CLAIM,
    SAMPLING,
    TEXTS,
    held_stages,
    put_lines,
    rows,
    run_stages_as,
    until,
)
from toolformer_ops.airflow_tasks.airflow_client import ENDED_STATES, AirflowClient
from toolformer_ops.config import Settings
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.tools.registry import BUILT_IN_TOOLS

CHROMIUM = Path("/usr/bin/chromium")
CHOSEN = ["Calculator", "Echo"]
PROBLEMS = [
    {"Body": f"The shop had {n} shirts and sold 5.", "Question": "How many are left?", "Answer": n - 5.0}
    for n in (10, 20, 30)
]
"""Of SVAMP, in its published format."""
IN_THE_FORM = {
    "What is kept": {"prune_below": "0", **{f"keep_threshold_{tool}": "0" for tool in CHOSEN}},
    "Sampling": {"sampling_threshold": "0", "max_positions": "4", "samples_per_position": "3"},
    "Finetuning": {"finetune_steps": "2", "finetune_batch": "2", "approve": ["before_finetuning"]},
    "Evaluation": {"evaluation_suites": ["math", "lama"], "evaluation_data": "s3://toolformer/evaluation"},
}
"""Fields below the fold by section; the rest of `SAMPLING` is not in the form."""
NOT_IN_THE_FORM = {
    "call_prefix": "tool_name",
    "max_call_tokens": 16,
    "placebos": 0,
    "placebo_sample": 0,
    "finetune_device_batch": 2,
    "finetune_length": 64,
}

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def page(services, airflow):
    """A browser that is signed in to Airflow."""
    expect.set_options(timeout=120_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 1280, "height": 1000})
        opened.set_default_timeout(120_000)
        opened.goto(services.airflow_url)
        opened.locator('input[name="username"]').fill(services.airflow_username)
        opened.locator('input[name="password"]').fill(services.airflow_password.get_secret_value())
        opened.get_by_role("button", name="Sign in").click()
        expect(opened.locator('input[name="password"]')).to_have_count(0)
        yield opened
        browser.close()


# The run


@pytest.fixture(scope="module")
def run(page, services, airflow, model, cluster):
    """The id of the run, which has ended."""
    run_stages_as(services, airflow, "kubernetes" if cluster else "local")
    ObjectStore(services).put(
        "evaluation/svamp/SVAMP.json", json.dumps(PROBLEMS).encode(), "application/json"
    )
    # 1. The form.
    page.goto(f"{services.airflow_url}/dags/{ANNOTATE}")
    page.get_by_test_id("trigger-dag-button").first.click()
    form = page.get_by_role("dialog")
    trigger = form.get_by_role("button", name="Trigger", exact=True)
    expect(form.locator('input[name="element_corpus"]')).to_be_visible()
    expect(trigger).to_be_disabled()  # corpus and model are asked for
    write(form, "corpus", put_lines(services, "corpora/posts.jsonl", TEXTS))
    write(form, "model", model)
    for tool in BUILT_IN_TOOLS:
        form.get_by_label(f"Remove {tool}").click()
    write(form, "tools", CHOSEN)
    for section, fields in IN_THE_FORM.items():
        form.get_by_role("button", name=section, exact=True).click()
        for name, value in fields.items():
            write(form, name, value)
    form.get_by_role("button", name="Advanced Options", exact=True).click()
    form.locator(".monaco-editor").click()
    page.keyboard.press("Control+Home")
    page.keyboard.press("End")  # behind the brace that opens
    page.keyboard.insert_text(json.dumps(NOT_IN_THE_FORM).strip("{}") + ",")
    page.keyboard.press("Control+Home")
    form.get_by_role(
        "button", name="Evaluation", exact=True
    ).click()  # leaves the editor, which reads its text then
    expect(trigger).to_be_enabled()
    trigger.click()
    [found] = until("the run", lambda: airflow.get(f"/dags/{ANNOTATE}/dagRuns", limit=100)["dag_runs"])
    run_id = str(found["dag_run_id"])
    page.goto("about:blank")  # drawn in software, the page of a running DAG takes a core that the run needs
    # 2. The eviction, of a pod that has rows which it has not committed.
    if cluster:
        filtered = "select 1 from stage_ledger join run_tools on recipe_id = filter_recipe_id where tool = 'Calculator'"
        until("the texts of the Calculator", lambda: len(rows(services, filtered)) == len(TEXTS))
        with held_stages(services):
            evicted = until("a pod that waits to commit", lambda: waiting_pod(services, cluster))
            cluster.evict(evicted.name)
    # 3. A person's yes.
    until("the question", lambda: waits_for_a_yes(airflow, run_id))
    address = f"{services.airflow_url}/dags/{ANNOTATE}/runs/{quote(run_id, safe='')}/tasks/approve_finetuning"
    page.goto(f"{address}/required_actions")
    page.get_by_role("button", name="Approve").click()
    until("the answer", lambda: not waits_for_a_yes(airflow, run_id))
    page.goto("about:blank")
    # 4. The end.
    until("the end", lambda: airflow.run_state(ANNOTATE, run_id) in ENDED_STATES, seconds=2.0)
    return run_id


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


def waiting_pod(settings: Settings, cluster: TestCluster) -> PodRecord | None:
    """The pod that annotates for the Calculator, once it and all others that write in the ledger wait for a lock."""
    at_work = [
        record for record in cluster.records if record.stage in ("filter", "annotate") and record.is_at_work
    ]
    waiting = one(settings, "select count(*) from pg_stat_activity where wait_event_type = 'Lock'")
    found = [record for record in at_work if record.labels["task_id"] == "Calculator.annotate"]
    return found[0] if found and waiting == len(at_work) else None


def waits_for_a_yes(airflow: AirflowClient, run_id: str) -> bool:
    return bool(
        airflow.get(f"{of_run(run_id)}/taskInstances/approve_finetuning")["state"] == "awaiting_input"
    )


def of_run(run_id: str) -> str:
    return f"/dags/{ANNOTATE}/dagRuns/{quote(run_id, safe='')}"


def one(settings: Settings, statement: str, **values: object) -> Any:
    """The one value of a statement."""
    [(value,)] = rows(settings, statement, **values)
    return value


def test_a_run_from_the_form_ends_with_calls_in_sql_beside_release_with_model_on_s3(services, airflow, run):
    conf = airflow.get(of_run(run))["conf"]
    assert (conf["tools"], conf["keep_threshold_Echo"], conf["keep_threshold_MT"]) == (CHOSEN, 0, None)
    assert (SAMPLING | NOT_IN_THE_FORM).items() <= conf.items()
    kept = rows(services, "select tool, call_text, result from kept_calls where run_id = :run", run=run)
    assert {tool for tool, _, _ in kept} == set(CHOSEN)
    for tool, text, result in kept:
        assert tool != "Echo" or text == f"Echo({result})"
    answers = rows(
        services, "select step, is_approved, answered_by from approvals where run_id = :run", run=run
    )
    assert answers == [("before_finetuning", True, services.airflow_username)]
    assert f"- Before finetuning: approved by {services.airflow_username}, " in airflow.note(ANNOTATE, run)
    release = "select uri, calls from run_releases join dataset_releases using (release_id) where run_releases.run_id = :run"
    [(release_uri, calls)] = rows(services, release, run=run)
    assert len(kept) >= calls > 0
    model = (
        "select uri from run_models model join finetuned_models using (model_id) where model.run_id = :run"
    )
    store = ObjectStore(services)
    for uri, ending in ((release_uri, ".parquet"), (one(services, model, run=run), ".safetensors")):
        manifest = store.read_manifest(store.key_of(uri))
        assert manifest is not None
        assert any(file.name.endswith(ending) for file in manifest.files)
        assert all(store.exists(manifest.key_of(file)) for file in manifest.files)


def test_a_suite_without_data_fails_by_name_without_stopping_another(services, airflow, run):
    tasks = airflow.get(f"{of_run(run)}/taskInstances", limit=100)["task_instances"]
    by_state = {
        state: {task["task_id"] for task in tasks if task["state"] == state}
        for state in ("failed", "success")
    }
    assert by_state["failed"] == {"evaluation.lama", "finish_run"}
    assert by_state["success"] >= {"publish", "evaluation.math", "evaluation.report"}
    [lama] = [task for task in airflow.tasks(ANNOTATE, run, "failed") if task.task_id == "evaluation.lama"]
    assert "EvaluationDataError: " in "\n".join(airflow.log_tail(ANNOTATE, run, lama, 20))
    skipped = [task for task in tasks if task["state"] == "skipped"]
    assert {"Calendar", "WordCount", "finetune_without_calls"} <= {
        task["task_id"].split(".")[0] for task in skipped
    }
    assert [task["task_id"] for task in skipped if task["pid"]] == []  # no start of 0.9 s each
    found = rows(
        services, "select variant, suite, subset, inputs from evaluation_scores where run_id = :run", run=run
    )
    assert sorted(found) == [(variant, "math", "svamp", 3) for variant in ("base", "disabled", "with_tools")]
    assert one(services, "select state from annotation_runs where run_id = :run", run=run) == "failed"


def test_an_evicted_pod_is_tried_again_with_each_text_done_once(services, airflow, run, cluster):
    if cluster is None:
        pytest.skip("needs a cluster: no pod was evicted")
    # 1. The task says why, and all of the work is there: what was not committed was done again.
    tries = {task.name: task.try_number for task in airflow.tasks(ANNOTATE, run, "success")}
    path = f"{of_run(run)}/taskInstances/Calculator.annotate/logs"
    logs = [
        json.dumps(airflow.get(f"{path}/{number}", map_index=0, full_content="true")["content"])
        for number in range(
            1, tries["Calculator.annotate [0]"]
        )  # Airflow may begin a try more where a machine is slow
    ]
    assert any("low on resource: memory" in log for log in logs)
    done = "select stage, count(*) from stage_ledger where stage in ('sample', 'score') group by 1"
    asked = one(services, "select count(*) from filter_decisions where kept")
    assert dict(rows(services, done)) == {"sample": asked, "score": asked}
    assert rows(services, "select * from micro_batch_tries") == []  # no text is suspected any more
    # 2. The pods: at most one a try, and nothing works on.
    named = [
        tuple(record.labels.get(key) for key in ("task_id", "map_index", "try_number"))
        for record in cluster.records
    ]
    assert len(named) == len(set(named))
    stages = {
        "filter",
        "annotate",
        "check",
        "evaluate",
        "ingest",
        "release",
        "check-release",
        "finetune",
        "publish",
    }
    assert set(cluster.started_by_stage()) == stages
    cluster.wait_for(lambda: not any(record.is_at_work for record in cluster.records), "no pod works on")
    assert cluster.gpus_in_use() == 0 < cluster.most_gpus_in_use
    downloads = cluster.kubelet.claim_folder(CACHE_CLAIM) / "downloads.jsonl"
    fetched = [json.loads(line)["artifact"] for line in downloads.read_text(encoding="utf-8").splitlines()]
    assert len(fetched) == len(set(fetched)) > 0, "a node downloads an artifact once, for all of its pods"
    # 3. Airflow used each right of its role and no other.
    [user] = {user for _, _, user in cluster.api.requests if user != "admin"}
    used = {(verb, resource) for verb, resource, name in cluster.api.requests if name == user}
    assert used == {
        (verb, resource) for rule in cluster.role for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert cluster.api.forbidden == []


# The page


def opened(page: Page, settings: Settings, run_id: str) -> FrameLocator:
    """The tab of the run."""
    page.goto(f"{settings.airflow_url}/dags/{ANNOTATE}/runs/{quote(run_id, safe='')}/plugin/annotation")
    frame = page.frame_locator('iframe[title="Annotation"]')
    expect(frame.get_by_role("heading", name=run_id)).to_be_visible()
    return frame


def wait_for(page: Page, part: str) -> None:
    """Return once the frame is at an address with this part, whole."""
    frame = "document.querySelector('iframe').contentWindow"
    page.wait_for_function(
        f"part => {frame}.location.href.includes(part) && {frame}.document.readyState === 'complete'",
        arg=part,
    )


def test_the_tab_of_a_red_run_says_what_its_failed_task_said(page, services, run):
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    kept, scored = (
        one(services, f"select count(*) from {view} where run_id = :run", run=run)
        for view in ("kept_calls", "scored_calls")
    )
    # 1. The run.
    frame = opened(page, services, run)
    expect(frame.get_by_text("This run is red.")).to_be_visible()
    expect(frame.locator("#total-kept")).to_have_text(f"{kept:,}")
    expect(frame.locator("#total-scored")).to_have_text(f"{scored:,}")
    expect(frame.locator("[data-failed-tasks] .notice").filter(has_text="lama").first).to_be_visible()
    # 2. Its calls, by a filter, whose form a script sends; and one of them.
    frame.get_by_role("link", name="Calls", exact=True).click()
    wait_for(page, "/toolformer/calls")
    frame.locator('select[name="status"]').select_option("scored")
    wait_for(page, "status=scored")
    expect(frame.locator("table.calls tbody tr")).to_have_count(min(scored, 50))
    frame.locator("table.calls tbody tr").first.get_by_role("link").click()
    expect(frame.locator("mark.here")).to_have_count(1)
    # 3. Another threshold.
    frame.get_by_role("link", name="Thresholds", exact=True).click()
    wait_for(page, "/toolformer/thresholds")
    frame.locator('input[name="threshold.Calculator"]').fill("0.5")
    at_half = one(services, "select count(*) from kept_calls_at(:run, 'Calculator', 0.5)", run=run)
    expect(frame.locator('[data-tool="Calculator"] [data-count="calls"]')).to_contain_text(f"{at_half:,}")
    # 4. The report of its evaluations.
    frame.get_by_role("link", name="Evaluation", exact=True).click()
    report = frame.frame_locator(f'iframe[src*="reports/{ANNOTATE}/"]')
    expect(report.get_by_role("heading", name=run)).to_be_visible()
    expect(report.get_by_text("Not evaluated:")).to_be_visible()
    # 5. A link leads out of the frame, to Airflow itself.
    failed = opened(page, services, run).locator("[data-failed-tasks] .notice").filter(has_text="lama").first
    failed.get_by_role("link", name="Log of the task").click()
    page.wait_for_url(f"**/dags/{ANNOTATE}/runs/**/tasks/**")  # the window itself, not the frame
    assert [
        message for message in said if "Content Security Policy" in message and "toolformer" in message
    ] == []


def test_the_navigation_leads_to_the_release_whose_calls_are_judged(page, services, run):
    release_id = one(services, "select release_id from run_releases where run_id = :run", run=run)
    page.goto(f"{services.airflow_url}/plugin/corpora")
    frame = page.frame_locator('iframe[title="Corpora and releases"]')
    frame.get_by_role("link", name=release_id).first.click()
    expect(frame.locator("#fetch")).to_contain_text(
        f"toolformer-ops download s3://toolformer/releases/{release_id}"
    )
    page.goto(f"{services.airflow_url}/plugin/review")
    frame = page.frame_locator('iframe[title="Review"]')
    frame.get_by_role("link", name=release_id).first.click()
    wait_for(page, release_id)
    frame.get_by_role("button", name="Review").click()
    frame.get_by_role("button", name="useful").click()
    expect(frame.get_by_text("1 of ").first).to_be_visible()
    judged = rows(services, "select reviewer, verdict from judgements")
    assert judged == [(services.airflow_username, "useful")]


def test_nobody_sees_it_without_signing_in(services, run):
    query = f"dag_id={ANNOTATE}&run_id={quote(run)}"
    for path in (
        "run",
        "calls",
        "review",
        "assets/page.js",
        "no/such/page",
        f"reports/{ANNOTATE}/{quote(run)}",
    ):
        answer = httpx.get(f"{services.airflow_url}/toolformer/{path}?{query}", timeout=60)
        assert answer.status_code == 401, path
        assert CHOSEN[0] not in answer.text


def test_a_run_is_pinned_to_the_version_of_its_dag_so_that_a_tool_file_changes_nothing_of_it(airflow, run):
    found = airflow.get(of_run(run))
    assert len(found["bundle_version"]) == 16


def test_a_run_that_a_person_ends_is_closed(services, airflow, model):
    AnnotatedRun(
        services, {"Calculator": 0.25}, run_id="ended", prune_below=0.0
    )  # its rows; no task of it starts
    of_dag = f"/dags/{ANNOTATE}"
    airflow._request("PATCH", of_dag, json={"is_paused": True})
    conf = {"corpus": "s3://toolformer/corpora", "model": model}
    airflow._request(
        "POST", f"{of_dag}/dagRuns", json={"dag_run_id": "ended", "logical_date": None, "conf": conf}
    )
    airflow._request("PATCH", f"{of_dag}/dagRuns/ended", json={"state": "failed"})  # as the UI does
    airflow._request("PATCH", of_dag, json={"is_paused": False})
    state = "select state from annotation_runs where run_id = 'ended'"
    until("its end", lambda: one(services, state) == "failed")


def test_nothing_that_the_run_leaves_holds_a_password(services, airflow, run):
    held = json.loads((services.state_dir / "secrets.json").read_text())
    passwords = [value for name, value in held.items() if name != "s3_access_key"]
    assert len(passwords) >= 10
    tables = [
        table for (table,) in rows(services, "select tablename from pg_tables where schemaname = 'public'")
    ]
    left = {table: str(rows(services, f'select * from "{table}"')) for table in tables}
    store = ObjectStore(services)
    left |= {key: store.get(key).decode(errors="replace") for key in store.list("")}
    logs = [path for path in services.state_dir.rglob("*.log") if path.is_file()]
    left |= {str(path): path.read_text(errors="replace") for path in logs}
    left["runs"] = str(airflow.get("/dags/~/dagRuns", limit=100))
    assert logs
    assert any(name.endswith("index.html") for name in left)
    assert [
        name for name, content in left.items() if any(password in content for password in passwords)
    ] == []
