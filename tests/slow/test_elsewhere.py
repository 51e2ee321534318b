"""The same code elsewhere: in the image under docker-compose.yml, and on the other Python.

Each takes minutes.
"""

import os
import subprocess

import pytest

from toolformer_ops.config import REPOSITORY

pytestmark = pytest.mark.slow


def _printed_by(*command: str) -> str:
    """What a command says; it must succeed.

    It starts as from a shell, not as from the `make` and the pytest around it.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS", "PYTEST_"))
    }
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_demo_goes_through_the_image_in_docker_compose():
    said = _printed_by("tests/docker/compose-run")
    _, skipped, reason = said.partition("SKIPPED: ")
    if skipped:
        pytest.skip(reason.strip())
    assert "the demo took" in said


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_unit_tests_pass_on_a_newer_python(version):
    tried = ["sh", "-c", f"python{version} -c 'import venv, ensurepip'"]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip(f"needs python{version} with its venv: the unit tests were NOT tried on it")
    assert " passed" in _printed_by(
        "make", "test", "TESTS=tests/unit", f"PYTHON=python{version}", f"VENV=.venv-{version}"
    )
