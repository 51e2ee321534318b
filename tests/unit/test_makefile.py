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
def harmful(tmp_path):
    """Text that makes the file `executed` where make or a shell reads it."""
    touch = f"touch {tmp_path / 'executed'}"
    return (
        f"$(shell {touch}) $$(shell {touch}) `{touch}` \"; {touch}; \" '; {touch}; ' $({touch}) $HOME %s # \\"
    )


@pytest.fixture
def bin_folder(tmp_path):
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
    assert not (bin_folder.parent / "executed").exists(), (
        f"make {shlex.join(words)} executed what a user typed"
    )
    arguments, found = json.loads(finished.stdout)
    return arguments, found


OF_A_RUN = ("TOOLS", "LIMIT", "THRESHOLDS", "PARAMETERS")
OF_BENCH = ("WORK", "TEXTS", "RUNS", "DTYPE", "MODEL", "OUT")
OF_BENCH_GPU = ("DEVICE", "SHAPES", "OUT")


def test_everything_that_is_said_of_a_run_arrives_literally(bin_folder, harmful):
    for target, names, before, after in (
        ("run", OF_A_RUN, ["run"], ["--", "--help"]),
        ("bench", OF_BENCH, ["-m", "benchmarks"], []),
        ("bench-gpu", OF_BENCH_GPU, ["-m", "benchmarks.gpu"], []),
    ):
        words = [f"{name}={harmful}" for name in names]
        options = [f"--{name.lower()}={harmful}" for name in names]
        assert made(bin_folder, target, "CORPUS=--help", *words)[0] == [*before, *options, *after]
    assert made(bin_folder, "clean", "YES=")[0] == ["clean"]
    assert made(bin_folder, "clean", f"YES={harmful}")[0] == ["clean", "--yes"]


def test_a_statement_arrives_literally(bin_folder, harmful):
    statement = f"select '{harmful}'\nfrom documents"
    assert made(bin_folder, "sql", f"Q={statement}")[0] == ["sql", "--", statement]
    assert made(bin_folder, "sql")[0] == ["sql"]
    assert made(bin_folder, "sql", f"RUN={harmful}", "Q=-- x")[0] == ["sql", f"--run={harmful}", "--", "-- x"]


def test_lists_of_words_are_split_but_not_read(bin_folder, harmful):
    for target, variable in (("logs", "SERVICE"), ("test", "TESTS"), ("mutants", "MODULES")):
        arguments, _ = made(bin_folder, target, f"{variable}=one {harmful}")
        assert arguments[-len(harmful.split()) - 1 :] == ["one", *harmful.split()]


def test_a_run_without_a_corpus_says_what_is_missing(bin_folder):
    command = ["make", f"BIN={bin_folder}", "STAMP=", "run"]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (finished.returncode, "CORPUS is missing" in finished.stdout) == (2, True)


def test_any_other_variable_is_not_expanded_either(bin_folder, harmful):
    both = {"TOOLFORMER_STATE_DIR": harmful, "OMP_NUM_THREADS": harmful}
    words = [f"{name}={value}" for name, value in both.items()]
    assert made(bin_folder, "up", *words, f"Q={harmful}", f"X={harmful}") == (["up"], both)
    # Nor those of the environment.
    assert made(bin_folder, "run", CORPUS=harmful, **both) == (["run", "--", harmful], both)
