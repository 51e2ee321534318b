"""Schedule files: what they may hold, and what a mistake is told as."""

from pathlib import Path

import pytest

from toolformer_ops.airflow_tasks.nights.schedules import load_schedule, schedule_files
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.runs.choices import RunChoices

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


def test_a_schedule_has_the_choices_of_a_run_with_the_defaults_of_the_form(tmp_path: Path) -> None:
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


def test_a_schedule_names_the_fields_of_its_corpus(tmp_path: Path) -> None:
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
        "run.max_positions: Input should be greater than or equal to 1 (found 0)",
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
    ("", {"after": '["wiki"]'}, "after: expected wiki_index or the URI of an asset"),
    ("", {"corpus": '"posts.jsonl"'}, "corpus: expected an s3:// or file:/// address or an absolute path"),
    ("", {"corpus": None}, "corpus: expected this key, found none"),
    ("", {"model": ""}, "expected a schedule in TOML, found: "),
    ('name = "other"\n', {}, "the name of a schedule is that of its file"),
    ("", {"name": "My Posts"}, "name: String should match pattern"),
]


@pytest.mark.parametrize(("sections", "values", "expected"), MISTAKES)
def test_a_mistake_in_a_file_is_told_at_its_key_with_a_remedy(
    tmp_path: Path, sections: str, values: dict[str, str | None], expected: str
) -> None:
    assert expected in refusal(written(tmp_path, sections, **values))


def test_all_mistakes_are_told_at_once_also_those_in_the_list_of_tools(tmp_path: Path) -> None:
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


def test_only_toml_files_of_the_folder_are_schedules(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder.toml").mkdir()
    second, first = written(tmp_path, name="b"), written(tmp_path, name="a")
    assert schedule_files(tmp_path) == [first, second]
    assert schedule_files(tmp_path / "none") == schedule_files(None) == []
