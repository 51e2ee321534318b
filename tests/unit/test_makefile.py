"""What a user types after `make` arrives as it was typed: neither make nor the shell reads anything in it."""

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from toolformer_ops.config import REPOSITORY

RECORDER = """#!/bin/sh
exec {python} -c 'import json, os, sys
names = ["TOOLFORMER_STATE_DIR", "OMP_NUM_THREADS"]
print(json.dumps([sys.argv[1:], {{name: os.environ.get(name) for name in names}}]))' "$@"
"""


@pytest.fixture
def harmful(tmp_path: Path) -> str:
    """Text that makes the file `executed` where make or a shell reads it."""
    touch = f"touch {tmp_path / 'executed'}"
    return f"$(shell {touch}) $$(shell {touch}) `{touch}` \"; {touch}; \" '; {touch}; ' $({touch}) $HOME %s # \\"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """Stand-ins for `toolformer-ops` and `python` that print the arguments that reached them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("toolformer-ops", "python"):
        program = folder / name
        program.write_text(RECORDER.format(python=sys.executable))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def made(bin_folder: Path, *words: str, **environment: str) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of the program that `make <words>` starts."""
    command = ["make", "--no-print-directory", f"BIN={bin_folder}", "STAMP=", "LOCK_TOOLS=", *words]
    finished = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert not (bin_folder.parent / "executed").exists(), f"make {shlex.join(words)} executed what a user typed"
    arguments, found = json.loads(finished.stdout)
    return arguments, found


def test_everything_that_is_said_of_a_run_arrives_literally(bin_folder: Path, harmful: str) -> None:
    names = ("TOOLS", "LIMIT", "THRESHOLDS", "PARAMETERS")
    arguments, _ = made(bin_folder, "run", f"CORPUS={harmful}", *(f"{name}={harmful}" for name in names))
    assert arguments == ["run", *(f"--{name.lower()}={harmful}" for name in names), "--", harmful]
    assert made(bin_folder, "run", "CORPUS=x", 'PARAMETERS={"seed": 1}')[0][1] == '--parameters={"seed": 1}'


def test_a_run_without_tools_and_limit_gives_the_corpus_alone(bin_folder: Path) -> None:
    assert made(bin_folder, "run", "CORPUS=--help")[0] == ["run", "--", "--help"]


def test_a_run_without_a_corpus_says_what_is_missing(bin_folder: Path) -> None:
    command = ["make", f"BIN={bin_folder}", "STAMP=", "run"]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert "CORPUS is missing" in finished.stdout


def test_a_statement_arrives_literally(bin_folder: Path, harmful: str) -> None:
    statement = f"select '{harmful}'\nfrom documents"
    assert made(bin_folder, "sql", f"Q={statement}")[0] == ["sql", "--", statement]
    assert made(bin_folder, "sql")[0] == ["sql"]
    assert made(bin_folder, "sql", f"RUN={harmful}", "Q=-- x")[0] == ["sql", f"--run={harmful}", "--", "-- x"]


def test_every_choice_of_a_measurement_arrives_literally(bin_folder: Path, harmful: str) -> None:
    names = ("WORK", "TEXTS", "RUNS", "DTYPE", "MODEL", "OUT")
    arguments, _ = made(bin_folder, "bench", *(f"{name}={harmful}" for name in names))
    assert arguments == ["-m", "benchmarks", *(f"--{name.lower()}={harmful}" for name in names)]


def test_every_choice_of_a_gpus_measurement_arrives_literally(bin_folder: Path, harmful: str) -> None:
    names = ("TEXTS", "MINUTES", "OUT")
    arguments, _ = made(bin_folder, "bench-gpu", *(f"{name}={harmful}" for name in names))
    assert arguments == ["-m", "benchmarks.gpu", *(f"--{name.lower()}={harmful}" for name in names)]


def test_a_measurement_has_defaults(bin_folder: Path, tmp_path: Path) -> None:
    arguments, _ = made(bin_folder, "bench", f"TOOLFORMER_STATE_DIR={tmp_path}")
    assert "--dtype=float32,bfloat16" in arguments
    assert f"--out={tmp_path}/bench" in arguments


@pytest.mark.parametrize(
    ("target", "variable"), [("logs", "SERVICE"), ("test", "TESTS"), ("test-slow", "TESTS"), ("mutants", "MODULES")]
)
def test_lists_of_words_are_split_and_not_read(bin_folder: Path, harmful: str, target: str, variable: str) -> None:
    arguments, _ = made(bin_folder, target, f"{variable}={harmful}")
    assert arguments[-len(harmful.split()) :] == harmful.split()
    assert made(bin_folder, target, f"{variable}=one two")[0][-2:] == ["one", "two"]


def test_any_other_variable_is_not_expanded_either(bin_folder: Path, harmful: str) -> None:
    arguments, environment = made(
        bin_folder,
        "up",
        f"TOOLFORMER_STATE_DIR={harmful}",
        f"OMP_NUM_THREADS={harmful}",
        f"Q={harmful}",
        f"X={harmful}",
    )
    assert arguments == ["up"]
    assert environment == {"TOOLFORMER_STATE_DIR": harmful, "OMP_NUM_THREADS": harmful}


def test_variables_of_the_environment_are_not_expanded(bin_folder: Path, harmful: str) -> None:
    arguments, environment = made(bin_folder, "run", CORPUS=harmful, TOOLFORMER_STATE_DIR=harmful)
    assert arguments == ["run", "--", harmful]
    assert environment["TOOLFORMER_STATE_DIR"] == harmful


@pytest.mark.parametrize(("yes", "options"), [("", []), ("1", ["--yes"]), ("$(shell touch executed)", ["--yes"])])
def test_clean_asks_unless_told_otherwise(bin_folder: Path, yes: str, options: list[str]) -> None:
    assert made(bin_folder, "clean", f"YES={yes}")[0] == ["clean", *options]
    assert not (REPOSITORY / "executed").exists()


def test_help_names_a_state_folder_as_it_was_given(harmful: str, tmp_path: Path) -> None:
    command = ["make", "help", f"TOOLFORMER_STATE_DIR={harmful}"]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert harmful in finished.stdout
    assert not (tmp_path / "executed").exists()
