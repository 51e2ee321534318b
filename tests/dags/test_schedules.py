"""Schedule files: what they may hold, and what a mistake is told as."""

import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolformer_ops.__main__ import app
from toolformer_ops.airflow_tasks.nights.schedules import load_schedule, schedule_files
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.runs.choices import RunChoices

NEW_YEAR = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
GOOD = {"corpus": '"s3://corpora/posts"', "model": '"models/m"', "cron": '"0 2 * * *"'}


def toml(sections: str = "", **values: str | None) -> str:
    """A schedule with these keys (None leaves one out) and sections."""
    keys = {key: value for key, value in {**GOOD, **values}.items() if value is not None}
    return "".join(f"{key} = {value}\n" for key, value in keys.items()) + sections


def written(folder: Path, sections: str = "", name: str = "posts", **values: str | None) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(toml(sections, **values), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_schedule(path)
    text = str(caught.value)
    assert str(path) in text
    assert "Correct the file" in text
    return text


def test_a_schedule_has_the_choices_of_a_run_with_the_defaults_of_the_form(tmp_path):
    schedule = load_schedule(written(tmp_path, '[run]\ntools = ["calculator"]\nseed = 7\n'))
    assert schedule.run == RunChoices(
        corpus="s3://corpora/posts", model="models/m", tools=("Calculator",), seed=7
    )
    assert (schedule.name, schedule.time_zone, schedule.hours, schedule.accept_shrink) == (
        "posts",
        "UTC",
        24.0,
        False,
    )
    assert schedule.finetune.min_changed_examples == 1


def test_a_schedule_names_the_fields_of_its_corpus(tmp_path):
    schedule = load_schedule(written(tmp_path, '[run]\nfields = ["url=link", "text=raw_content"]\n'))
    assert schedule.run.corpus_address == "s3://corpora/posts --field text=raw_content --field url=link"


MISTAKES: list[tuple[str, dict[str, str | None], str]] = [
    (
        "[run]\nsampling_treshold = 0.1\n",
        {},
        "run.sampling_treshold: unknown key; did you mean sampling_threshold?",
    ),
    (
        "[run]\nmax_positions = 0\n",
        {},
        "run.max_positions: expected 1 or more (found 0)",
    ),
    ('[run]\nfields = ["txt=body"]\n', {}, "run.fields: --field: expected FIELD=NAME"),
    ('[run]\nmodel = "x"\n', {}, "run.model: belongs at the top of the file"),
    (
        "[run]\nkeep_thresholds = {Calculator = 0.1}\n",
        {},
        "at least prune_below, 0.5 nats, found 0.1 for Calculator",
    ),
    ('[run]\ntools = ["MT"]\nkeep_thresholds = {QA = 1.0}\n', {}, "expected chosen tools, found QA"),
    ('[notify]\nemails = ["a b"]\n', {}, "notify.emails.0: "),
    ('[notify]\nwebhooks = ["https://hooks.example/secret"]\n', {}, "notify.webhooks.0: "),
    ("", {"cron": '"61 2 * * *"'}, "cron: expected five fields"),
    ("", {"cron": '"@daily"'}, "cron: expected five fields"),
    ("", {"cron": '"0 2 30 2 *"'}, "cron: expected a day that some month has"),
    ("", {"cron": '"R 2 * * *"'}, "cron: expected times, found a field that is drawn at random"),
    ("", {"cron": None}, "expected cron, after, or both: nothing would start a run"),
    ("", {"time_zone": '"Europe/Berln"'}, "such as Europe/Berlin (found 'Europe/Berln')"),
    ("", {"time_zone": '"local"'}, "expected the name of a time zone, such as Europe/Berlin"),
    ("", {"time_zone": '"localtime"'}, "expected the name of a time zone, such as Europe/Berlin"),
    ("", {"time_zone": '"UTC+2"'}, "this offset, without summer time, is Etc/GMT-2 (found 'UTC+2')"),
    ("", {"hours": '"all"'}, "hours: expected a number (found 'all')"),
    ("", {"cron": "5"}, "cron: expected text in quotes (found 5)"),
    ("", {"after": '"wiki_index"'}, 'after: expected a list, such as ["a", "b"]'),
    ('[notify]\nemails = ["a b"]\n', {}, "expected an address, such as ann@example.org (found 'a b')"),
    ("", {"after": '["wiki"]'}, "after: expected wiki_index or the URI of an asset"),
    ("", {"corpus": '"posts.jsonl"'}, "corpus: expected an s3:// or file:/// address or an absolute path"),
    ("", {"corpus": None}, "corpus: expected this key, found none"),
    ("", {"model": ""}, "expected a schedule in TOML, found: "),
    ('name = "other"\n', {}, "the name of a schedule is that of its file"),
    ("", {"name": "My Posts"}, "name: expected a file called by small letters, digits, - and _"),
]


@pytest.mark.parametrize(("sections", "values", "expected"), MISTAKES)
def test_a_mistake_in_a_file_is_told_at_its_key_with_a_remedy(tmp_path, sections, values, expected):
    assert expected in refusal(written(tmp_path, sections, **values))


def test_all_mistakes_are_told_at_once_also_those_in_the_list_of_tools(tmp_path):
    text = refusal(written(tmp_path, "[run]\nsed = 1\n", hours="0", owner="3"))
    assert "found 3 mistakes" in text
    assert all(key in text for key in ("run.sed", "hours", "owner"))
    for tools in ('["Nope"]', '["Calculator", "Nope", 3]'):
        text = refusal(written(tmp_path, f"[run]\ntools = {tools}\nsed = 1\n"))
        assert (
            "run.tools: expected one of the tools Calculator, Calendar, WikiSearch, QA, MT, found 'Nope'"
            in text
        )
        assert "run.sed" in text


def test_only_toml_files_of_the_folder_are_schedules(tmp_path):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder.toml").mkdir()
    second, first = written(tmp_path, name="b"), written(tmp_path, name="a")
    assert schedule_files(tmp_path) == [first, second]
    assert schedule_files(tmp_path / "none") == schedule_files(None) == []


@pytest.mark.parametrize(
    ("cron", "starts"),
    [
        ('"0 2 1 * 1"', "Thu 2026-01-01 02:00, Mon 2026-01-05 02:00, Mon 2026-01-12 02:00"),
        ('"0 2 * * FRI-MON"', "Fri 2026-01-02 02:00, Sat 2026-01-03 02:00, Sun 2026-01-04 02:00"),
        ('"* * * * *"', "Thu 2026-01-01 00:01, Thu 2026-01-01 00:02, Thu 2026-01-01 00:03"),
    ],
)
def test_a_schedule_tells_its_next_starts(tmp_path, cron, starts):
    schedule = load_schedule(written(tmp_path, cron=cron))
    assert schedule.starts_after(NEW_YEAR).startswith(starts)


def test_starts_are_told_in_the_time_zone_of_the_file_when_clocks_change(tmp_path):
    schedule = load_schedule(written(tmp_path, cron='"30 2 * * *"', time_zone='"Europe/Berlin"'))
    told = schedule.starts_after(datetime.datetime(2026, 3, 28, tzinfo=datetime.UTC))
    assert told.startswith("Sat 2026-03-28 02:30, Sun 2026-03-29 03:00, Mon 2026-03-30 02:30")


def test_an_expression_with_two_kinds_of_days_says_that_either_counts(tmp_path):
    told = load_schedule(written(tmp_path, cron='"0 2 1 * 1"')).starts_after(NEW_YEAR)
    assert "each day of the month 1 and each day of the week 1, not only days that are both" in told


def test_an_expression_that_fires_each_minute_says_so(tmp_path):
    told = load_schedule(written(tmp_path, cron='"* * * * *"')).starts_after(NEW_YEAR)
    assert "more often than once an hour" in told


def test_a_usual_expression_says_nothing_more_than_its_starts(tmp_path):
    assert load_schedule(written(tmp_path)).starts_after(NEW_YEAR).endswith("Mon 2026-01-05 02:00 (UTC)")


def test_a_schedule_without_a_clock_names_what_it_waits_for(tmp_path):
    schedule = load_schedule(written(tmp_path, cron=None, after='["wiki_index"]'))
    assert schedule.starts_after(NEW_YEAR) == "no clock starts it: it waits for wiki_index"


def test_check_tells_the_next_starts_of_a_schedule_file(tmp_path):
    path = written(tmp_path, corpus=f'"{tmp_path / "none.jsonl"}"')
    told = CliRunner().invoke(app, ["check", str(path)])
    assert told.stdout.startswith("next starts: ")
    assert told.stdout.count(" 02:00") == 5


def test_check_takes_no_option_beside_a_schedule_file(tmp_path):
    told = CliRunner().invoke(app, ["check", str(written(tmp_path)), "--limit", "5"])
    assert "expected no other option beside a schedule file" in str(told.exception)
