"""The command line: what is typed, and the status, what is printed and what is said of it; requests that are wrong among them."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.annotated_runs import AnnotatedRun
from toolformer_ops import __main__ as command_line
from toolformer_ops import termination
from toolformer_ops.__main__ import app
from toolformer_ops.cli.command_line import PANELS
from toolformer_ops.config import Settings
from toolformer_ops.decoding.model import WritingModel

Run = Callable[..., tuple[int | str | None, str, str]]
SUM = "Out of 1400 people, 400 passed, that is 29 %."


@pytest.fixture
def run(monkeypatch, tmp_path, capsys, caplog):
    """`toolformer-ops` with these words, in a folder with two texts: the status, stdout, and stderr with the errors of the log."""
    monkeypatch.chdir(tmp_path)
    Path("posts.jsonl").write_text(f'{{"text": "{SUM}"}}\n{{"text": "None here."}}\n')
    Path("ccnet.jsonl").write_text(
        "".join(
            f'{{"url": "https://x/{n}", "raw_content": "We baked {n} loaves and sold 12, so {n - 12} were left."}}\n'
            for n in (20, 21)
        )
    )
    monkeypatch.setattr(termination, "install", lambda: None)

    def made(*words: str) -> tuple[int | str | None, str, str]:
        caplog.clear()
        monkeypatch.setattr(sys, "argv", ["toolformer-ops", *words])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        printed = capsys.readouterr()
        errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        said = " ".join(re.sub("[│╭╮╰╯─]", " ", printed.err).split())  # without Typer's boxes
        return ended.value.code, printed.out, "\n".join([said, *errors])

    return made


TYPED: list[tuple[list[str], int, str, str]] = [
    # An input may begin with a minus sign, and with what asks other commands for help.
    (["call", "Calculator", "-3"], 0, "-3\n", ""),
    (["call", "Calculator", "-3 + 5"], 0, "2\n", ""),
    (["call", "Calculator", "-half"], 3, "", "no result: "),
    (["call", "--help"], 0, "Usage", ""),
    (["call", "Calculator", "--modle=smol"], 2, "", "expected an option of `call` (--date, --model) or an input, found --modle"),
    (["call", "Abacus", "1"], 2, "", "found 'Abacus'"),
    (["call", "Calendar", "--date=2023-01-30"], 0, "Today is Monday, January 30, 2023.\n", ""),
    (["call", "Calendar"], 3, "", "no result: document_has_no_date"),
    (["annotate", "ccnet.jsonl", "--tool", "Calculator", "--model", "m", "--field", "body"], 2, "", "--field: expected FIELD=NAME"),
    (["check", "ccnet.jsonl", "--model", "m", "--field", "body"], 2, "", "--field: expected FIELD=NAME"),
    (["run", "ccnet.jsonl"], 2, "wrong corpus: ", "expected a corpus, tools and a model that a run can use, found corpus wrong."),
    (["run", "posts.jsonl", "--proposer", "nobody"], 2, "", "run parameters are not valid: proposer: "),
    (["run", "ccnet.jsonl", "--field", "body"], 2, "", "--field: expected FIELD=NAME"),
    (["stage", "ingest", "--corpus", "ccnet.jsonl", "--field", "body"], 2, "", "--field: expected FIELD=NAME"),
    (["explain"], 2, "", "found both or neither."),
    (["explain", "It is 2."], 2, "", "TEXT: expected one call in brackets, such as [Calculator(400 / 1400)], found 0"),
    (["explain", "[QA(a)] [QA(b)] c"], 2, "", "TEXT: expected one call in brackets"),
    (["explain", "a [QA(a)] b", "--run", "r"], 2, "", "found both or neither."),
    (["explain", "--run", "r", "--date", "2021-01-01"], 2, "", "beside a stored call, found some."),
    (["check", "posts.jsonl", "--json"], 2, "", "--json, --store: expected --measure, too, found it missing."),
    (["annotate", "posts.jsonl", "--tool", "QA", "--model", "m", "--out", "posts.jsonl"], 2, "", "--out: expected no file at pos"),
    (["check", "none.jsonl", "--model", "m", "--tool", "QA"], 2, "wrong corpus: expected the corpus", "found corpus, model wrong"),
    (["check", "ccnet.jsonl", "--model", "m"], 2, "raw_content, not text: --field text=raw_content", "found corpus, model wrong."),
    (["preview", "posts.jsonl", "--model", "m", "--html", "posts.jsonl"], 2, "", "--html: expected a name that ends in .html"),
    (["preview", "none.jsonl", "--model", "m", "--tool", "QA"], 2, "wrong corpus: ", "found corpus, model wrong."),
    (["judge", "none.jsonl", "--model", "m"], 2, "", "none.jsonl, found nothing"),
    (["judge", "posts.jsonl", "--model", "m", "--field", "body"], 2, "", "--field: expected FIELD=NAME with one of text, at"),
    (["parameters"], 0, '"sampling_threshold"', ""),
    (["export", "release"], 2, "", "OUT: expected a .jsonl file or a folder to write to"),
    (["export", "release", "out", "--format", "csv"], 2, "", "--format: expected one of chat, sharegpt, preference,"),
    (["sql", "--runn"], 2, "", "expected --run or a statement"),
    (["run", "posts.jsonl", "--attach", "run-1"], 2, "", "--attach"),
    (["stage", "start-run", "--run", "r", "--parameters", "[1]"], 2, "", "expected"),
    # Housekeeping.
    (["forget", "--corpus", "x", "--release", "y"], 2, "", "expected one of --document, --corpus, --release and --model"),
    (["forget", "--record", "7"], 2, "", "--record: expected --corpus with the address of the record's corpus"),
    (["audit", "--accept-numbers", "r", "--repair"], 2, "", "expected --accept-numbers alone"),
    (["audit", "--run", "r", "--model", "m"], 2, "", "expected one of --corpus, --run, --release and --model"),
    (["audit", "--yes"], 2, "", "expected --yes with --repair, found it alone."),
    # Tools of servers.
    (["new-tool", "--tool", "t", "--examples", "e"], 2, "", "--mcp, --openapi, found none. Name what answers."),
    (["new-tool", "--tool", "t", "--examples", "e", "--mcp", "m", "--header", "a"], 2, "", "a name, a colon and a value"),
    (["new-tool", "--tool", "t", "--examples", "e", "--openapi", "o"], 2, "", "--mcp, --openapi, --url, --secret, --header: "),
    (["refresh-tool", "t.txt"], 2, "", "t.txt: expected a tool file, NAME.toml, found another name."),
    # Writing and evaluating.
    (["generate", "--date", "May", "x"], 2, "", "--date: expected a date such as 2023-01-30, found 'May'."),
    (["generate", "x", "--file", "posts.jsonl"], 2, "", "either as arguments or with --file, found both."),
    (["generate", "--file", "none.txt"], 2, "", "--file: expected a text file in UTF-8 at none.txt"),
    (["generate", "x", "--model", "m", "--tools", "Abacus"], 2, "", "Abacus"),
    # Without Postgres and S3.
    (["runs"], 2, "", "TOOLFORMER_DATABASE_DSN"),
    (["doctor"], 1, "missing Postgres: ", ""),
]  # fmt: skip
"""What is typed, the status, what stdout begins with or holds, and what stderr holds."""


@pytest.mark.parametrize("words", [[], ["--tool", ""]], ids=["no tool", "an empty tool"])
def test_generate_may_call_all_tools_if_none_is_named(run, monkeypatch, words):
    allowed: list[object] = []

    def load(settings: Settings, name: str, tools: object) -> Any:
        allowed.append(tools)
        return SimpleNamespace(write=lambda prompts, decoding: [])

    monkeypatch.setattr(WritingModel, "load", load)
    assert run("generate", "x", "--model", "m", *words)[0] == 0
    assert allowed == [None]


@pytest.mark.parametrize(
    ("words", "status", "printed", "said"), TYPED, ids=[" ".join(item[0])[:60] for item in TYPED]
)
def test_what_is_typed_prints_its_words_with_its_status(run, words, status, printed, said):
    found_status, out, error = run(*words)
    assert (found_status, printed in out, said in error) == (status, True, True), (out, error)
    assert printed or not out
    assert "Traceback" not in error


def test_help_shows_every_command_once_in_panels_by_purpose(run):
    wide = {"COLUMNS": "300", "TERMINAL_WIDTH": "300"}
    asked, briefly = (CliRunner().invoke(app, [option], env=wide) for option in ("--help", "-h"))
    assert (briefly.exit_code, briefly.stdout) == (0, asked.stdout)
    shown: dict[str, list[str]] = {}
    for line in asked.stdout.splitlines():
        if line.startswith("╭─"):
            shown[panel := line.strip("╭╮─ ")] = []
        elif line.startswith("│ "):
            shown[panel].append(line.split()[1])
    assert {"--version", "--install-completion"} <= set(shown.pop("Options"))
    assert {panel: tuple(names) for panel, names in shown.items()} == dict(PANELS)
    assert run("--version")[:2] == (0, f"{version('toolformer-ops')}\n")


OF_A_RUN: list[tuple[list[str], int, str, str]] = [
    (["doctor"], 0, "ok      Postgres: answers", ""),
    (["runs"], 0, "run-1", ""),
    (["runs", "--json"], 0, '"run_id": "run-1"', ""),
    (["changes", "run-1", "--calls", "9"], 0, "Corpus: ", ""),
    (["changes", "run-1", "--json"], 0, '"summary"', ""),
    (["changes", "nobody"], 2, "", "nobody"),
    (["thresholds", "run-1"], 3, "Calculator: none (", ""),
    (["thresholds", "nobody"], 2, "", "nobody"),
    (["retry-failed", "--run", "run-1"], 0, "0 documents are tried again by the next run", ""),
    (["retry-failed", "--run", "nobody"], 2, "", "nobody"),
    (["retention"], 0, "recipes would be dropped (--yes does it): ", ""),
    (["explain", "--call-id", "0" * 32], 2, "", "expected"),
    (["download", "nobody", "folder"], 2, "", "nobody"),
    (["push", "nobody", "owner/name"], 2, "", "nobody"),
    (["publish-model", "none"], 2, "", "none"),
    (["export", "nobody", "--format", "judgements"], 2, "", "nobody"),
    (["stage", "tools-to-do", "--run", "run-1"], 0, '{"tools": [', ""),
    (["stage", "plan", "--run", "run-1", "--tool", "Calculator"], 0, "[", ""),
    (["stage", "filter", "--run", "run-1", "--tool", "Abacus"], 2, "", "Abacus"),
    (["stage", "execute", "--run", "run-1", "--tool", "Calculator"], 2, "", "run run-1 was started with Calculator version 1"),
    (["stage", "score", "--run", "run-1", "--tool", "Calculator", "--shard", "1/1"], 2, "", "1/1"),
    (["stage", "release", "--run", "run-1"], 0, '{"release_id": "', ""),
    (["stage", "check-release", "--run", "run-1"], 0, "", ""),
    (["stage", "check", "--run", "run-1"], 3, '{"passed": [], "refused": {"Calculator": ', "recipes_are_described"),
    (["stage", "release", "--run", "run-1"], 3, "", "recipes_are_described"),
    (["stage", "finetune", "--run", "nobody"], 2, "", "nobody"),
    (["stage", "publish", "--run", "nobody"], 2, "", "nobody"),
    (["stage", "evaluate", "--run", "nobody", "--suite", "qa"], 2, "", "nobody"),
    (["stage", "report-evaluation", "--run", "nobody"], 2, "", "nobody"),
    (["stage", "start-finetuning", "--run", "t", "--release", "0" * 16, "--parameters", "{}"], 2, "", "0" * 16),
    (["stage", "start-run", "--run", "n", "--parameters", '{"corpus": "c", "model": "hub/m@1"}'], 2, "", "expected"),
    (["stage", "ingest", "--corpus", "none.jsonl"], 2, "", "none.jsonl, found nothing"),
    (["stage", "build-index", "--source", "none.json"], 2, "", "none.json"),
    (["stage", "finish-run", "--run", "run-1"], 0, '{"summary": "', ""),
]  # fmt: skip
"""In this order, on a run with one call in one text."""


def test_every_command_of_a_run_prints_its_words_with_its_status(run, settings):
    made = AnnotatedRun(settings, {"Calculator": 0.5})
    made.add_call("Calculator", made.add_text(SUM), " 29", "400 / 1400", "0.29", saves=1.25)
    made.complete("Calculator")
    released = ""
    for words, status, printed, said in OF_A_RUN:
        found_status, out, error = run(*words)
        assert (found_status, printed in out, said in error) == (status, True, True), (words, out, error)
        assert printed or not out, words
        if printed.startswith('{"release_id"'):
            released = json.loads(out)["release_id"]
    status, out, _ = run("download", released, "folder", "--license", "cc-by-sa-4.0")
    assert (status, out.startswith("folder: "), Path("folder/README.md").is_file()) == (0, True, True)


def test_a_statement_may_begin_with_a_comment(monkeypatch):
    sent: list[str] = []

    def run(*_: object, **options: str) -> subprocess.CompletedProcess[str]:
        sent.append(options["input"])
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr("toolformer_ops.local.postgres.psql", lambda *_: (["psql"], {}))
    monkeypatch.setattr("toolformer_ops.cli.services.subprocess.run", run)
    monkeypatch.setattr("toolformer_ops.cli.services._say_where_older_rows_are", lambda *_: None)
    statement = "-- How many texts are there?\nselect count(*) from documents"
    assert CliRunner().invoke(app, ["sql", statement]).exit_code == 0
    assert sent[0].endswith(statement)
