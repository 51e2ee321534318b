"""The files in `deploy/` for Kubernetes and for Airflow's Helm chart: valid, hardened, and in accord with settings and DAGs."""

import importlib.util
import ipaddress
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import SecretStr

from tests.kubernetes.admission import KUBERNETES_VERSION, pod_security_violations
from toolformer_ops.airflow_tasks.defaults import POOLS
from toolformer_ops.airflow_tasks.run_ids import RUN_ID_PATTERN
from toolformer_ops.config import ENV_PREFIX, REPOSITORY, Settings
from toolformer_ops.local.airflow import BUNDLES

KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
OF_KUSTOMIZE = "kustomization.yaml"
POD_TEMPLATES = sorted((REPOSITORY / "deploy" / "pod-templates").glob("*/*.yaml"))
LINK_LOCAL = ipaddress.ip_network("169.254.0.0/16")
SECRETS_OF_SETTINGS = {
    f"{ENV_PREFIX}{name.upper()}"
    for name, field in Settings.model_fields.items()
    if "SecretStr" in str(field.annotation)
}
KEYS_OF_THE_CHART = {"connection", "fernet-key", "api-secret-key", "jwt-secret"}
"""What the chart looks for in the Secrets that its values name."""


def documents(folder: Path) -> list[dict[str, Any]]:
    files = sorted(path for path in folder.glob("*.yaml") if path.name != OF_KUSTOMIZE)
    return [document for path in files for document in yaml.safe_load_all(path.read_text())]


def named(kind: str, folder: Path = BASE) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for found in documents(folder) if found["kind"] == kind}


def variables(path: Path) -> dict[str, str]:
    """An env file as `kubectl create secret generic --from-env-file` reads it: what follows the first `=` is the value."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def pod_specs() -> dict[str, dict[str, Any]]:
    """The pods of the Job and of the trial's services."""
    found = {**named("Job"), **named("StatefulSet", KUBERNETES / "trial")}
    return {name: workload["spec"]["template"]["spec"] for name, workload in found.items()}


@pytest.fixture(scope="module")
def values():
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "deploy" / "airflow-values.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def settings():
    return variables(BASE / "settings.env")


def test_every_deployment_refuses_run_ids_that_no_folder_of_logs_can_have(settings):
    name = "AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN"
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    assert settings[name] == RUN_ID_PATTERN
    assert compose["x-toolformer"]["environment"][name].replace("$$", "$") == RUN_ID_PATTERN


@pytest.mark.parametrize(
    ("run_id", "is_taken"),
    [
        ("r" * 200, True),
        ("r" * 201, False),
        ("scheduled__2026-11-22T02:00:00+00:00", True),
        ("a/b", False),
        ("", False),
    ],
)
def test_a_run_id_has_at_most_two_hundred_characters(run_id, is_taken):
    assert bool(re.match(RUN_ID_PATTERN, run_id)) == is_taken


# Manifests


def test_every_manifest_is_valid_to_the_letter_of_kubernetes():
    for folder in ("base", "internet", "eks-pod-identity", "gke-workload-identity", "shared-cache", "trial"):
        for manifest in documents(KUBERNETES / folder):
            kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_doctor_asks_for_exactly_the_rights_of_the_role():
    from toolformer_ops.airflow_tasks.kubernetes.doctor import RIGHTS

    rules = named("Role")["start-stage-pods"]["rules"]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert {(f"{resource}/{part}" if part else resource, verb) for resource, part, verb in RIGHTS} == granted


def test_nothing_may_go_in_or_out_but_what_a_policy_lists():
    policies = named("NetworkPolicy")
    assert policies["deny-all"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    inwards = [policy["spec"]["podSelector"] for policy in policies.values() if "ingress" in policy["spec"]]
    assert inwards == [{"matchLabels": {"tier": "airflow"}}]
    (names,) = policies["names"]["spec"]["egress"]
    assert {port["port"] for port in names["ports"]} == {53, 5353}  # OpenShift's DNS pods listen on 5353
    # Where a cloud says who a pod is, only the component of that cloud leads.
    for folder in ("base", "trial", "internet", "shared-cache"):
        for policy in named("NetworkPolicy", KUBERNETES / folder).values():
            peers = [peer for rule in policy["spec"].get("egress", ()) for peer in rule.get("to", ())]
            for block in [peer["ipBlock"] for peer in peers if "ipBlock" in peer]:
                open_to = ipaddress.ip_network(block["cidr"])
                closed = not open_to.overlaps(LINK_LOCAL) if open_to.version == 4 else True
                assert closed or str(LINK_LOCAL) in block.get("except", ()), folder


# The Job and the services of the trial


pods = pytest.mark.parametrize("spec", pod_specs().values(), ids=pod_specs())


@pods
def test_a_pod_passes_restricted(spec):
    assert list(pod_security_violations(spec)) == []


@pods
def test_a_pod_gets_no_token_of_its_service_account(spec):
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "toolformer"


@pods
def test_a_container_of_a_pod_has_a_pinned_image(spec):
    images = [container["image"] for container in spec["containers"]]
    assert [
        image for image in images if not re.search(r"^toolformer-ops$|@sha256:[0-9a-f]{64}$", image)
    ] == []


@pods
def test_a_container_of_a_pod_has_a_limit_of_memory(spec):
    assert all(container["resources"]["limits"]["memory"] for container in spec["containers"])


def test_pools_are_those_of_the_dags_with_deferred_tasks_counted():
    for folder in ("base", "trial"):
        pools = json.loads((KUBERNETES / folder / "pools.json").read_text())
        assert set(pools) == set(POOLS)
        assert all(pool["include_deferred"] is True and pool["slots"] > 0 for pool in pools.values())


# Settings and secrets


def test_templates_of_secrets_name_exactly_what_is_secret_without_a_value():
    for file, names in (
        ("toolformer.env", SECRETS_OF_SETTINGS),
        ("toolformer-airflow.env", KEYS_OF_THE_CHART),
    ):
        assert variables(KUBERNETES / "secrets" / file) == dict.fromkeys(names, "")


def test_the_trials_secrets_are_whole_new_files_of_their_user_alone(tmp_path):
    script = KUBERNETES / "trial" / "make-secrets"
    made = []
    for name in ("one", "two"):
        subprocess.run([script, tmp_path / name], check=True, capture_output=True)
        files = list((tmp_path / name).iterdir())
        assert [path.stat().st_mode & 0o777 for path in files] == [0o600] * 3
        made.append({path.name: variables(path) for path in files})
    one, two = made
    assert set(one["toolformer.env"]) == SECRETS_OF_SETTINGS
    assert set(one["toolformer-airflow.env"]) == KEYS_OF_THE_CHART
    for file, found in one.items():
        assert all(value and two[file][name] != value for name, value in found.items())
    assert subprocess.run([script, tmp_path / "one"], capture_output=True, check=False).returncode != 0


def test_every_setting_is_one_of_ours_with_a_value_that_it_takes(settings, monkeypatch):
    for variable in [name for name in settings if name.startswith(ENV_PREFIX)]:
        assert variable.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
        assert variable not in SECRETS_OF_SETTINGS
        monkeypatch.setenv(variable, settings[variable])
    read = Settings(_env_file=None)  # type: ignore[call-arg]
    assert read.runner == "kubernetes"
    assert all(
        not value.get_secret_value() for value in read.__dict__.values() if isinstance(value, SecretStr)
    )


def test_tool_files_are_where_their_readers_look_for_them(values, settings):
    pods = [(values["volumes"], values["volumeMounts"])]
    for spec in (yaml.safe_load(path.read_text())["spec"] for path in POD_TEMPLATES):
        pods.append((spec["volumes"], spec["containers"][0]["volumeMounts"]))
    tools = {"name": "toolformer-tools", "optional": True}  # a deployment without any has no such ConfigMap
    for volumes, mounts in pods:
        [volume] = [one["name"] for one in volumes if one.get("configMap") == tools]
        assert {"name": volume, "mountPath": settings["TOOLFORMER_TOOLS_DIR"], "readOnly": True} in mounts


def test_each_version_of_the_deployment_is_the_same_everywhere(values, settings):
    (image,) = yaml.safe_load((KUBERNETES / "trial" / OF_KUSTOMIZE).read_text())["images"]
    name = f"{image['newName']}:{image['newTag']}"
    assert f"{values['images']['airflow']['repository']}:{values['images']['airflow']['tag']}" == name
    assert settings["TOOLFORMER_KUBERNETES_IMAGE"] == f"{name}-cuda"
    assert f'\nversion = "{image["newTag"]}"\n' in (REPOSITORY / "pyproject.toml").read_text()
    locks = "".join(path.read_text() for path in REPOSITORY.glob("requirements/*.lock"))
    assert re.search(rf"^apache-airflow=={re.escape(values['airflowVersion'])}\s", locks, re.MULTILINE)
    texts = [(REPOSITORY / path).read_text() for path in ("deploy/airflow-values.yaml", "docs/kubernetes.md")]
    assert len({version for text in texts for version in re.findall(r"--version ([\d.]+)", text)}) == 1


def test_an_overlay_as_the_page_shows_it_renders(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: nothing renders the kustomizations")
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    (text,) = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", page, re.DOTALL)
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "mine"
    overlay.mkdir()
    (overlay / OF_KUSTOMIZE).write_text(text)
    command = ["kubectl", "kustomize", str(overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr, "kustomize warns"
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    namespaces = {one["metadata"].get("namespace") for (kind, _), one in found.items() if kind != "Namespace"}
    assert namespaces == {Settings.model_fields["kubernetes_namespace"].default}
    assert found["ConfigMap", "toolformer"]["data"]["TOOLFORMER_S3_BUCKET"] == "our-toolformer"


def test_the_charts_pods_pass_restricted(values):
    pod, container = values["securityContexts"]["pod"], values["securityContexts"]["containers"]
    job = pod_specs()["toolformer-prepare"]
    assert {**pod, "fsGroupChangePolicy": None} == {**job["securityContext"], "fsGroupChangePolicy": None}
    assert container == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_charts_pods_read_no_database_of_airflow(values):
    assert values["enableBuiltInSecretEnvVars"]["AIRFLOW_CONN_AIRFLOW_DB"] is False


def test_every_setting_of_airflow_exists(settings):
    spec = importlib.util.find_spec("airflow")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    known = yaml.safe_load((Path(folder) / "config_templates" / "config.yml").read_text())
    asked = [name for name in settings if not name.startswith(ENV_PREFIX)]
    assert len(asked) > 5
    for variable in asked:
        prefix, section, option = variable.split("__", 2)
        assert prefix == "AIRFLOW"
        assert option.lower() in known[section.lower()]["options"], variable


BUNDLES_IN = {
    "deploy/kubernetes/base/settings.env": r"BUNDLE_CONFIG_LIST=(\[.*\])\n",
    "docker-compose.yml": r"BUNDLE_CONFIG_LIST: >-\n(\s*\[.*?\])\n",
    "docs/nightly.md": r"BUNDLE_CONFIG_LIST='(\[.*?\])'\n",
}
"""Files that say which DAG bundles Airflow has, and where in them."""


@pytest.mark.parametrize("name", BUNDLES_IN)
def test_every_deployment_has_the_dag_bundles_of_one_machine(name):
    found = re.search(BUNDLES_IN[name], (REPOSITORY / name).read_text(encoding="utf-8"), re.DOTALL)
    assert found
    assert json.loads(found[1]) == list(BUNDLES)
