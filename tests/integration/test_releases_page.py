"""The examples on docs/releases.md run as they stand there."""

import re
from pathlib import Path

import pytest
from sqlalchemy import text as sql_text

from tests.annotated_runs import AnnotatedRun
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.stages.release import release
from toolformer_ops.storage import database

PAGE = (REPOSITORY / "docs" / "releases.md").read_text(encoding="utf-8")


def _example(language: str) -> str:
    """The first of that language: those that read a release stand before those for other programs."""
    return str(re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0])


def test_examples_of_the_page_find_the_release_and_read_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    document = run.add_text("Out of 1400 people, 400 passed, that is 29 %.")
    run.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=1.25)
    run.complete("Calculator")
    release_id = release(settings, run.run_id)
    with database.transaction(run.engine) as connection:
        [row] = connection.execute(sql_text(_example("sql").rstrip().rstrip(";"))).all()
    assert (row.run_id, row.release_id, row.documents, row.calls, row.model_id) == ("run-1", release_id, 1, 1, None)
    monkeypatch.chdir(tmp_path)
    exec(compile(_example("python").replace("RELEASE_ID", release_id), "releases.md", "exec"), {})  # noqa: S102
    assert "that is [Calculator(400 / 1400) -> 0.29] 29 %." in capsys.readouterr().out
