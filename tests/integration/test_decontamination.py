"""A release is compared with evaluation data: what is said of the texts that hold some, and what a release without them is."""

import functools
import json
from pathlib import Path

import pytest

from tests.annotated_runs import AnnotatedRun, release
from toolformer_ops.audit.checking import check_release
from toolformer_ops.audit.running import audit
from toolformer_ops.config import Settings
from toolformer_ops.errors import EvaluationDataError, NoResultError, UsageError, exit_code
from toolformer_ops.release.chat_export import export_chat
from toolformer_ops.release.format import read_release
from toolformer_ops.release.refusals import Refusals
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.release import compared_with_evaluation_data, release_of_run, release_prefix
from toolformer_ops.stages.run_setup import start_run
from toolformer_ops.storage.objects.publication import ObjectStore

QUESTION = "Ann had 1400 apples, of which 400 were red. She sold all red ones at 29 cents each. How much did she get?"
pytestmark = pytest.mark.usefixtures("data")

PLAIN = "Out of 1400 people, 400 passed, that is 29 %."
HOLDS = f"From a book of sums. {QUESTION.upper()} She got 29 % of it."
QUOTES = "A line: she sold all red ones, at 29 cents each; how much did she get -- for 29 % of them?"


@pytest.fixture
def data(settings):
    """A folder with evaluation data: GSM8K with one question, and one of another data set that has too few words."""
    folder = data_of(settings)
    for name, file, records in (
        ("gsm8k", "test.jsonl", [{"question": QUESTION, "answer": "#### 116"}]),
        ("nq_open", "NQ-open.dev.jsonl", [{"question": "who passed", "answer": ["Ann"]}]),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / file).write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def data_of(settings: Settings) -> Path:
    """Where `data` is, which `annotated` names."""
    return settings.state_dir / "demo" / "data"


def annotated(settings: Settings, decontaminate: str, run_id: str = "run-1", *texts: str) -> AnnotatedRun:
    chosen = {"decontaminate": decontaminate, "evaluation_data": str(data_of(settings))}
    run = AnnotatedRun(settings, {"Calculator": 0.5}, run_id=run_id, **chosen)
    for text in texts or (PLAIN, HOLDS, QUOTES):
        run.add_call("Calculator", run.add_text(text), " 29 %", "400 / 1400", "0.29", saves=1.25)
    run.complete("Calculator")
    return run


def released(settings: Settings, release_id: str, folder: Path) -> tuple[set[str], str]:
    ObjectStore(settings).fetch(release_prefix(release_id), folder)
    return {text.plain_text for text in read_release(folder)}, (folder / "README.md").read_text()


def with_two_refusals(settings: Settings, decontaminate: str) -> tuple[AnnotatedRun, str]:
    """A run and its release: one text with a kept call, and two in which no call helps, one of them with the question."""
    run = annotated(settings, decontaminate, "run-1", PLAIN)
    for text in (HOLDS, "The table has 7 or 8 legs, and 29 % of them are short."):
        run.add_call("Calculator", run.add_text(text), " 29 %", "400 / 1400", "0.29", saves=-0.5)
    run.complete("Calculator")
    return run, ObjectStore(settings).uri(release_prefix(release(settings, run.run_id)))


def exported_refusals(settings: Settings, uri: str, folder: Path) -> tuple[int, str]:
    """How many conversations call no tool, and the card."""
    refusals = Refusals(0.67, functools.partial(compared_with_evaluation_data, settings))
    count = export_chat(settings, uri, str(folder), seed=0, refusals=refusals).refusals
    return count, (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("decontaminate", "refusals", "sentence"),
    [
        ("leave_out", 1, "| left out, since they share word n-grams with evaluation data | 1 |"),
        ("report", 2, "All texts were compared with the evaluation data of the run"),
        ("off", 2, "so these texts were not compared either"),
    ],
)
def test_refusals_are_compared_with_evaluation_data_as_the_release_is(
    settings, tmp_path, decontaminate, refusals, sentence
):
    _, uri = with_two_refusals(settings, decontaminate)
    count, card = exported_refusals(settings, uri, tmp_path / "chat")
    assert count == refusals
    assert sentence in card


@pytest.mark.parametrize(("share", "refusals"), [(0.3, 1), (0.5, 1), (0.67, 2), (0.9, 2)])
def test_refusals_are_so_great_a_share_of_all_conversations(settings, tmp_path, share, refusals):
    """Beside one text with a call, of two texts that would do."""
    _, uri = with_two_refusals(settings, "off")
    compare = functools.partial(compared_with_evaluation_data, settings)
    export = export_chat(settings, uri, str(tmp_path / "chat"), seed=0, refusals=Refusals(share, compare))
    assert (export.conversations, export.refusals) == (1 + refusals, refusals)


def test_refusals_that_all_hold_evaluation_data_are_not_written(settings, tmp_path):
    run = annotated(settings, "leave_out", "run-1", PLAIN)
    run.add_call("Calculator", run.add_text(HOLDS), " 29 %", "400 / 1400", "0.29", saves=-0.5)
    run.complete("Calculator")
    uri = ObjectStore(settings).uri(release_prefix(release(settings, run.run_id)))
    with pytest.raises(NoResultError, match="expected a text without evaluation data, found it in all 1"):
        exported_refusals(settings, uri, tmp_path / "chat")
    assert not (tmp_path / "chat").exists()


OVERLAPS = "select text_begins, suite, data_set, question, shared_ngrams, words, is_left_out from release_overlaps order by 5 desc"
EXPECTED = [
    (HOLDS, "math", "gsm8k", 1, 11, "ann had 1400 apples of which 400 were red she sold all red", True),
    (QUOTES, "math", "gsm8k", 1, 2, "she sold all red ones at 29 cents each how much did she", True),
]  # the question has 23 words, so 11 n-grams of 13; the second text holds its words 10 to 23


def test_texts_that_hold_a_question_are_left_out_by_name(settings, tmp_path):
    run = annotated(settings, "leave_out")
    release_id = release(settings, run.run_id)
    texts, card = released(settings, release_id, tmp_path / "release")
    assert texts == {PLAIN}
    assert [tuple(row) for row in run.rows(OVERLAPS)] == EXPECTED
    assert "2 texts shared one and are left out" in card
    assert "| math:gsm8k | 1 | 13 | 0 | `" in card
    assert "| qa:nq_open | 1 | 8 | 1 | `" in card


def test_texts_that_hold_a_question_are_counted(settings):
    run = annotated(settings, "leave_out")
    release_id = release(settings, run.run_id)
    counted = run.rows(
        "select reason, is_loss, count from yield_by_stage where step = 7 and count > 0 order by reason"
    )
    assert [tuple(row) for row in counted] == [("holds_evaluation_data", True, 2), ("released", False, 1)]
    outcomes = run.rows("select release_outcome, count(*) from candidates group by 1 order by 1")
    assert [tuple(row) for row in outcomes] == [("holds_evaluation_data", 2), ("released", 1)]
    assert all(result.success for result in check_release(settings, run.run_id))
    assert release(settings, run.run_id) == release_id


def test_a_release_of_nothing_but_such_texts_says_why_it_is_none(settings):
    only = annotated(settings, "leave_out", "run-2", HOLDS)
    reason = release_of_run(settings, only.run_id).reason
    assert "1 texts are left out for the evaluation data in them" in reason


def test_a_report_leaves_the_texts_in_but_its_check_finds_one_that_is_not_named(settings, tmp_path):
    run = annotated(settings, "report")
    release_id = release(settings, run.run_id)
    texts, card = released(settings, release_id, tmp_path / "release")
    assert texts == {PLAIN, HOLDS, QUOTES}
    assert [tuple(row) for row in run.rows(OVERLAPS)] == [(*row[:-1], False) for row in EXPECTED]
    assert "2 texts shared one; they are in here" in card
    check_release(settings, run.run_id)
    run.change("update run_overlaps set is_left_out = true where shared_ngrams = 2")
    with pytest.raises(
        NoResultError, match=r"overlaps_are_those_stored: .* 1 of 2 rows: .*is_left_out_and_in_it True"
    ):
        check_release(settings, run.run_id)
    said: list[str] = []
    audit(settings, "release", release_id, say=said.append)
    assert "no call in a text that the release left out" in "".join(said)
    run.change("delete from run_overlaps where shared_ngrams = 2")
    with pytest.raises(NoResultError, match=r"overlaps_are_those_stored: .*is_found True, is_stored False"):
        check_release(settings, run.run_id)


def test_what_a_release_was_compared_with_is_in_its_id_unless_it_is_off(settings, data):
    ids = {}
    for choice in ("off", "report", "leave_out"):
        run = annotated(settings, choice, choice, PLAIN)  # which holds nothing
        ids[choice] = release(settings, run.run_id)
        assert run.rows("select * from run_overlaps") == []
    assert len(set(ids.values())) == 3
    [(definition,)] = run.rows(
        "select definition from dataset_releases where release_id = :id", id=ids["off"]
    )
    assert not {"decontaminate", "evaluation_data"} & set(definition)
    (data / "gsm8k" / "test.jsonl").write_text(json.dumps({"question": "How many?", "answer": "#### 1"}))
    assert release(settings, "report") != ids["report"]
    assert release(settings, "off") == ids["off"]


def test_a_repair_with_other_evaluation_data_names_them_instead_of_rows(settings, data, caplog):
    run = annotated(settings, "report")
    release_id = release(settings, run.run_id)
    store = ObjectStore(settings)
    [card] = [key for key in store.list(release_prefix(release_id)) if key.endswith("README.md")]
    store.delete(card)
    file = data / "gsm8k" / "test.jsonl"
    first = file.read_text()
    file.write_text(json.dumps({"question": "How many?", "answer": "#### 1"}))
    audit(settings, "run", run.run_id, repairs=True)
    assert card not in store.list(release_prefix(release_id))
    assert f"expected the evaluation data with which the release {release_id} was compared" in caplog.text
    assert "expected rows that give" not in caplog.text
    file.write_text(first)
    audit(settings, "run", run.run_id, repairs=True)
    assert card in store.list(release_prefix(release_id))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (None, "found none. Give the run evaluation_data"),
        ("", "found nothing at"),
        ("other/notes.txt", "expected at least one data set of a suite in"),
        ("gsm8k/test.jsonl", "gsm8k: expected JSON Lines with question and answer"),
    ],
)
def test_a_run_without_its_evaluation_data_is_refused_before_it_starts(settings, tmp_path, files, said):
    folder = tmp_path / "evaluation"
    if files:
        (folder / files).parent.mkdir(parents=True)
        (folder / files).write_text('{"question": "How many?"}\n')
    named = {} if files is None else {"evaluation_data": str(folder)}
    choices = RunChoices.parse({"corpus": "c", "model": "/nowhere", "decontaminate": "leave_out", **named})
    with pytest.raises(UsageError, match=said) as refused:
        start_run(settings, "run-1", choices)
    assert exit_code(refused.value) == 2
    assert isinstance(refused.value, EvaluationDataError) == (files is not None)
