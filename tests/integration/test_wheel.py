"""The wheel, in an environment of its own and an empty folder: everything that the package reads came with it.

The environment takes the other packages from the one that runs the tests, so that nothing is downloaded.
"""

import filecmp
import os
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from toolformer_ops.config import REPOSITORY
from toolformer_ops.errors import EXTRA_OF_MODULE

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
SHIPPED_FOLDERS = ("dags", "sql", "deploy/pod-templates")


@dataclass(frozen=True)
class Installation:
    """The wheel in a new environment."""

    python: Path
    package: Path
    """Folder of the installed package."""
    sdist: Path
    folder: Path
    """Empty, to start commands in."""

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line of the installation, as a user starts it in `folder`; its state is beside it."""
        inherited = {
            name: value for name, value in os.environ.items() if name[:6] not in ("TOOLFO", "PYTHON")
        }
        path = f"{self.python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "XDG_DATA_HOME": str(self.folder.parent / "data")}
        command = [self.python.with_name("toolformer-ops"), *words]
        return subprocess.run(
            command, cwd=self.folder, env=inherited | own, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    top = tmp_path_factory.mktemp("wheel")
    top.chmod(0o711)  # Postgres, which is not root, passes through it
    # 1. The sdist, and the wheel from it, as `pip install toolformer-ops.tar.gz` builds it.
    build = [sys.executable, "-m", "hatchling", "build", "-d"]
    subprocess.run([*build, top / "dist", "-t", "sdist"], cwd=REPOSITORY, check=True, capture_output=True)
    [sdist] = (top / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(top / "source", filter="data")
    [source] = (top / "source").iterdir()
    subprocess.run([*build, top / "dist", "-t", "wheel"], cwd=source, check=True, capture_output=True)
    shutil.rmtree(top / "source")
    [wheel] = (top / "dist").glob("*.whl")
    # 2. An environment with the wheel and, behind it, the packages of ours. Their .pth files are not read: no
    #    checkout.
    venv.create(top / "environment", symlinks=True)
    python = top / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", wheel]
    subprocess.run(install, check=True, capture_output=True)
    [packages] = (top / "environment" / "lib").glob("python3*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    folder = top / "empty"
    folder.mkdir()
    return Installation(python, packages / "toolformer_ops", sdist, folder)


def test_the_wheel_has_every_file_that_the_package_reads(installation):
    listed = ["git", "ls-files", "--", "toolformer_ops", *SHIPPED_FOLDERS]
    tracked = subprocess.run(
        listed, cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(tracked) > 400
    lacking = []
    for name in tracked:
        inside = (
            name.removeprefix("toolformer_ops/") if name.startswith("toolformer_ops/") else f"shipped/{name}"
        )
        there = installation.package / inside
        if not there.is_file() or not filecmp.cmp(REPOSITORY / name, there, shallow=False):
            lacking.append(name)
    assert lacking == []


def test_the_sdist_has_the_files_to_work_with(installation):
    with tarfile.open(installation.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "requirements/run.lock",
        "tests/conftest.py",
        "docs/own_tools.md",
        "Dockerfile",
        "LICENSE",
    } <= names
    assert not any(name.startswith((".venv", ".toolformer")) or name.endswith(".pyc") for name in names)


def test_the_services_start_from_any_folder_with_all_tables(installation):
    folder = installation.run("dags-folder")
    assert (folder.returncode, folder.stdout) == (0, f"{installation.package}/shipped/dags\n"), folder.stderr
    state = installation.folder.parent / "data" / "toolformer-ops"
    try:
        started = installation.run("up", "--only", "postgres")
        assert started.returncode == 0, started.stderr
        asked = installation.run("sql", "select count(*) as kept from kept_calls")
        assert (asked.returncode, asked.stdout.split()[2]) == (0, "0"), asked.stderr
        configuration = (state / "airflow" / "airflow.cfg").read_text()
        assert f"dags_folder = {installation.package}/shipped/dags\n" in configuration
    finally:
        cleaned = installation.run("clean", "--yes")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not state.exists()
    assert list(installation.folder.iterdir()) == []


BASE_ALONE = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({[*EXTRA_OF_MODULE]!r}))  # importing one of them says that it is not there
import toolformer_ops.__main__ as command_line
loaded = [name for name in ("torch", "transformers", "sqlalchemy", "boto3", "pandas", "pyarrow") if name in sys.modules]
assert not loaded, loaded
for room in ("stages", "on_a_file", "language_model", "annotation", "release"):
    package = importlib.import_module("toolformer_ops." + room)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(package.__name__ + "." + module.name)
sys.argv[1:] = ["up"]
command_line.main()
"""


def test_what_needs_an_extra_says_which_while_stages_need_none(installation):
    finished = subprocess.run(
        [installation.python, "-c", BASE_ALONE], cwd=installation.folder, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(installation.folder.parent), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert finished.returncode == 2, finished.stderr
    assert 'pip install "toolformer-ops[local]"' in finished.stderr
    assert set(EXTRA_OF_MODULE.values()) <= set(EXTRAS)
