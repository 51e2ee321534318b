"""Review: calls and placebos are judged blind, once, by who may see them; the numbers are those of a plain computation."""

import re
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from tests.dags.run_pages import allowed, application, rows, sign_in
from tests.run_sql import run_sql
from toolformer_ops.cli.people import app as people
from toolformer_ops.run_page.judgements import agreements, judgements_of, results
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database

__all__ = ["allowed", "rows"]  # fixtures

RELEASE = "release-2"
SAMPLE = {"release": RELEASE, "tool": "", "seed": "0", "calls": "10"}
RESULTS = {"c1": "0.29", "c4": "333", "c6": "84"}
"""Of the three calls of the release."""
Browsers = Callable[[str], TestClient]


@pytest.fixture
def app(allowed, rows, reader_dsn, reviewer_dsn):
    """The application with the addresses of the reader and of the reviewer."""
    return application(reader_dsn=reader_dsn, reviewer_dsn=reviewer_dsn)


@pytest.fixture
def browser_of(app):
    """A browser of somebody; the one who signed in last is signed in."""
    with TestClient(app) as client:

        def use(name: str) -> TestClient:
            sign_in(app, name)
            return client

        yield use


def stored(engine: Engine, statement: str = "select * from judgements order by judged_at") -> list[Any]:
    return run_sql(engine, statement)


def hidden(page: str) -> dict[str, str]:
    """The fields that the form of a page sends."""
    return dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page))


def shown_call(page: str) -> str:
    [call] = re.findall(r'<mark id="call"> (.*?)</mark>', page)
    return str(call)


def judge_all(client: TestClient, *verdicts: str, **sample: str) -> list[str]:
    """Say something of every call, in turn; what was shown."""
    shown = []
    page = client.get("/judge", params=SAMPLE | sample)
    for number in range(100):
        if "You have judged all" in page.text:
            return shown
        shown.append(shown_call(page.text))
        verdict = verdicts[number % len(verdicts)]
        page = client.post("/judge", data=hidden(page.text) | {"verdict": verdict})
        assert page.status_code == 200, page.text  # after the redirect
    raise AssertionError("the sample does not end")


def test_calls_are_shown_without_losses_among_placebos_alike_for_equal_seeds(browser_of, engine):
    shown = judge_all(browser_of("ann"), "useful")
    judged = stored(engine)
    assert [row.is_placebo for row in judged].count(True) == 1  # every second of three
    for row, call in zip(judged, shown, strict=True):
        own = RESULTS[str(row.call_id)[:2]]
        assert call.endswith(f"-&gt; {own}]") is not row.is_placebo
        assert (row.source_call_id is not None) is row.is_placebo
        assert (row.reviewer, row.release_id, row.tool, row.seed) == ("ann", RELEASE, "Calculator", 0)
    [placebo] = [row for row in judged if row.is_placebo]
    assert str(placebo.source_call_id)[:2] in set(RESULTS) - {str(placebo.call_id)[:2]}
    assert judge_all(browser_of("bob"), "useless") == shown
    page = browser_of("cid").get("/judge", params=SAMPLE).text
    assert not re.search(r"placebo|nats|2\.38|1\.25", page.lower())


def test_a_form_sent_twice_is_one_row_until_a_second_judgement_corrects_it(browser_of, engine):
    client = browser_of("ann")
    fields = hidden(client.get("/judge", params=SAMPLE).text)
    for _ in range(2):
        assert (
            client.post("/judge", data=fields | {"verdict": "useful"}, follow_redirects=False).status_code
            == 303
        )
    assert [row.verdict for row in stored(engine)] == ["useful"]
    again = client.get("/judge", params={**SAMPLE, "number": "1"}).text
    assert "you said useful" in again
    client.post("/judge", data=hidden(again) | {"verdict": "skip"})
    assert [row.verdict for row in stored(engine)] == ["useful", "skip"]
    assert [row.verdict for row in stored(engine, "select verdict from counted_judgements")] == ["skip"]


def test_what_is_no_form_of_the_page_is_refused_without_a_row(browser_of, allowed, engine):
    client = browser_of("ann")
    fields = hidden(client.get("/judge", params=SAMPLE).text) | {"verdict": "useful"}
    for wrong, status in (
        ({"verdict": "perfect"}, 400),
        ({"number": "99"}, 404),
        ({"number": "-1"}, 400),
        ({"calls": "100000"}, 400),
        ({"submission_id": "x"}, 400),
        ({"release": "../release-2"}, 404),
        ({"tool": "\0"}, 400),
        ({"tool": "x" * 20_000}, 413),
    ):
        assert client.post("/judge", data=fields | wrong).status_code == status, wrong
    del (lacking := dict(fields))["seed"]
    form = {"content-type": "application/x-www-form-urlencoded"}
    for request, status in (
        ({"json": fields}, 415),
        ({"data": lacking}, 400),
        ({"content": b"release=\xff", "headers": form}, 400),
        ({"content": "&".join(f"field{number}=1" for number in range(21)), "headers": form}, 400),
    ):
        assert client.post("/judge", **request).status_code == status, request
    foreign = {"origin": "https://elsewhere.example"}
    others = [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "null"}]
    for headers in (foreign, foreign | {"sec-fetch-site": "none"}, *others):
        assert client.post("/judge", data=fields, headers=headers).status_code == 403, headers
    for allowed.dag_ids, allowed.without_runs in (
        ({"nightly_posts"}, set()),
        ({"annotate_corpus", "nightly_posts"}, {"annotate_corpus"}),
    ):
        assert client.post("/judge", data=fields).status_code == 404
        assert client.get("/judge", params=SAMPLE).status_code == 404
        assert RELEASE not in client.get("/review").text
    allowed.dag_ids = {"somebody_elses"}
    assert client.post("/judge", data=fields).status_code == 403
    client.app.dependency_overrides.clear()  # type: ignore[attr-defined]
    assert client.post("/judge", data=fields).status_code == 401
    assert stored(engine) == []


def test_what_cannot_be_judged_is_said_without_a_row(browser_of, engine, rows, reader_dsn):
    client = browser_of("ann")
    fields = hidden(client.get("/judge", params=SAMPLE).text) | {"verdict": "useful"}
    app = application(reader_dsn=reader_dsn)  # without the reviewer's address
    sign_in(app, "ann")
    with TestClient(app) as reading:
        assert reading.post("/judge", data=fields).status_code == 503
    rows("delete from call_losses")
    for answer in (client.get("/judge", params=SAMPLE), client.post("/judge", data=fields)):
        assert (answer.status_code, "The rows of this call were deleted since" in answer.text) == (410, True)
    assert stored(engine) == []


@pytest.mark.usefixtures("rows")
def test_the_reviewer_role_may_only_add_judgements(reviewer_dsn, reader_dsn):
    insert = (
        "insert into judgements (submission_id, release_id, seed, tool, document_id, call_id, scoring_recipe_id, is_placebo, "
        f"reviewer, verdict) select '{uuid.uuid4()}', '{RELEASE}', 0, 'T', '{uuid.uuid4()}', '{uuid.uuid4()}', 'a1', false, 'x', "
        "'skip'"
    )
    for statement in (
        "select * from judgements",
        "select count(*) from documents",
        "update judgements set verdict = 'wrong'",
        "delete from judgements",
        "insert into corpora values ('c1', 's3://x')",
        "create table mine (x integer)",
        "create temporary table mine (x integer)",
        f"{insert} returning verdict",
        "select pg_notify('x', 'y')",
        "drop table judgements",
    ):
        assert refused(reviewer_dsn, statement), statement
    assert not refused(reviewer_dsn, insert)
    assert refused(reader_dsn, f"set transaction read write; {insert}")


def refused(dsn: str, statement: str) -> bool:
    engine = database.connect_dsn(dsn, "TOOLFORMER_REVIEWER_DSN")
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
    except DBAPIError as error:
        return getattr(error.orig, "pgcode", None) == "42501"  # no right
    finally:
        engine.dispose()
    return False


def test_hostile_texts_calls_or_names_are_shown_as_text(browser_of, rows):
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e"
    rows(
        "update documents set text = :t || text || :t, title = :t, url = :u",
        t=hostile,
        u=f"javascript:{hostile}",
    )
    moved = "update candidate_calls set call_text = 'Calculator(' || :t || ')', position_char = position_char + :n"
    rows(moved, t=hostile, n=len(hostile))
    rows("update call_losses set result = coalesce(result, '') || :t where reason is null", t=hostile)
    rows("update corpora set uri = 's3://b/' || :t", t=hostile)
    client = browser_of(hostile[:200])
    judge_all(client, "useful", "wrong")
    pages = [client.get("/judge", params={**SAMPLE, "number": str(n)}).text for n in (1, 2, 3)]
    pages += [client.get(address).text for address in (f"/review?release={RELEASE}", "/review", "/corpora")]
    for page in pages:
        assert not re.search('<script>alert|<img|\u202e|href="javascript', page)
    assert "&lt;script&gt;alert(1)" in pages[0]


def test_the_numbers_of_a_release_are_those_of_a_plain_computation(browser_of, engine):
    judge_all(browser_of("ann"), "useful", "wrong", "skip")
    judge_all(browser_of("bob"), "useful", "useless", "useless")
    plain = stored(engine)
    with database.transaction(engine) as connection:
        judged = judgements_of(connection, RELEASE)
    by_reviewer = {row.reviewer: row for row in results(judged)}
    for name in ("ann", "bob"):
        for rate, placebo in ((by_reviewer[name].calls, False), (by_reviewer[name].placebos, True)):
            said = Counter(row.verdict for row in plain if row.reviewer == name and row.is_placebo == placebo)
            counts = {
                "useful": rate.useful,
                "useless": rate.useless,
                "wrong": rate.wrong,
                "skip": rate.skipped,
            }
            assert +Counter(counts) == said
    [agreement] = agreements(judged)
    assert (agreement.first, agreement.second, agreement.both, agreement.same) == ("ann", "bob", 2, 1)
    # Of two: both useful once; wrong against useless once. By chance 1/2 * 1/2 = 1/4.
    assert agreement.kappa == pytest.approx((0.5 - 0.25) / 0.75)
    page = browser_of("cid").get("/review", params={"release": RELEASE}).text
    assert [page.count(f"<td>{name}</td>") for name in ("ann", "bob", "everybody", "ann, bob")] == [1] * 4
    assert ">0.33<" in page


def test_judgements_are_exported_apart_from_the_release(browser_of, settings, tmp_path):
    def exported(*words: str) -> str:
        result = CliRunner().invoke(people, ["export", "--format", "judgements", *words])
        return str(result.exception) if result.exception else result.output.strip()

    assert exported(RELEASE).endswith("found none. The page Review in Airflow takes them.")
    judge_all(browser_of("ann"), "useful")
    assert "'nothing'" in exported("nothing")
    address = exported(RELEASE)
    assert exported(RELEASE) == address
    store = ObjectStore(settings)
    first = store.get(store.key_of(address))
    assert first.count(b"\n") == first.count(b'"counts": true') == 3
    judge_all(browser_of("bob"), "wrong")
    second = Path(exported(RELEASE, str(tmp_path)))
    assert second.read_bytes().startswith(first)
    assert second.name not in address


def test_corpora_show_their_versions_with_nights_to_those_who_may_see_a_run(browser_of, allowed, rows):
    rows(
        "insert into corpus_versions (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, "
        "duplicates, rejected) values ('c000000000000000', 1, 4321, 4321, 0, 0, 0, 0, 2, 4324, 0, 3); "
        "insert into finished_run_yield (run_id, tool, step, stage, reason, is_loss, count) values "
        "('r2', 'Calculator', 5, 'keep', 'kept', false, 1234)"
    )
    page = browser_of("ann").get("/corpora").text
    assert page.count("4,321") == 3  # the newest version, and its row twice: documents, all of them added
    assert "<title>r2: Calculator 1,234</title>" in page
    assert 'width="60.0" height="200.0"' in page  # the highest bar
    allowed.dag_ids = {"nightly_posts"}
    other = browser_of("ann").get("/corpora").text
    assert ("4,321" in other, "There is no corpus yet" in other) == (False, True)


def test_a_release_is_shown_with_its_card_as_text(app, browser_of, rows, s3_settings, tmp_path):
    (tmp_path / "README.md").write_text("# A card\n<script>alert(1)</script> is text here")
    store = ObjectStore(s3_settings)
    manifest = store.publish(f"releases/{RELEASE}", {"README.md": tmp_path / "README.md"})
    published = {"uri": store.uri(manifest.prefix), "sha256": manifest.sha256}
    rows("update dataset_releases set uri = :uri, manifest_sha256 = :sha256", **published)
    reader = app.state.reader
    reader.settings = s3_settings.model_copy(update={"reader_dsn": reader.settings.reader_dsn})

    def page() -> str:
        return browser_of("ann").get(f"/release?release={RELEASE}").text

    assert "# A card\n&lt;script&gt;alert(1)&lt;/script&gt; is text here" in page()
    store.delete(manifest.key)
    assert "Its card cannot be read" in page()
    rows("update dataset_releases set withdrawn_at = now()")
    assert "Its files were deleted on" in page()
