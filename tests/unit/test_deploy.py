"""The files in `deploy/` for Kubernetes and for Airflow's Helm chart: valid, hardened, and in accord with settings and DAGs."""

import importlib.util
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

from tests.kubernetes.admission import pod_security_violations
from toolformer_ops.config import ENV_PREFIX, REPOSITORY, Settings
from toolformer_ops.orchestration.defaults import POOLS

KUBERNETES_VERSION = "1.37"
KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
OF_KUSTOMIZE = "kustomization.yaml"
SECRETS_OF_SETTINGS = {
    f"{ENV_PREFIX}{name.upper()}"
    for name, field in Settings.model_fields.items()
    if "SecretStr" in str(field.annotation)
}
KEYS_OF_THE_CHART = {"connection", "fernet-key", "api-secret-key", "jwt-secret"}
"""What the chart looks for in the Secrets that its values name."""


def documents(folder: Path) -> list[dict[str, Any]]:
    """All manifests of a folder."""
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
def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "deploy" / "airflow-values.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return variables(BASE / "settings.env")


def rendered(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What `kubectl apply -k` would apply, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: nothing renders the kustomizations")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "kustomize warns"
    return {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(done.stdout)}


# Manifests


@pytest.mark.parametrize("folder", ["base", "internet", "trial"])
def test_every_manifest_is_valid_to_the_letter_of_kubernetes(folder: str) -> None:
    found = documents(KUBERNETES / folder)
    assert found
    for manifest in found:
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("folder", ["base", "trial"])
def test_kustomize_renders_everything_into_the_namespace(folder: str) -> None:
    for (kind, name), manifest in rendered(KUBERNETES / folder).items():
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
        if kind != "Namespace":
            assert manifest["metadata"]["namespace"] == Settings.model_fields["kubernetes_namespace"].default, name


def test_the_trial_changes_what_it_says_and_nothing_else(settings: dict[str, str]) -> None:
    base, trial = rendered(BASE), rendered(KUBERNETES / "trial")
    of_base, of_trial = base["ConfigMap", "toolformer"]["data"], trial["ConfigMap", "toolformer"]["data"]
    assert of_base == settings
    assert {name: value for name, value in of_trial.items() if of_base.get(name) != value} == {
        "TOOLFORMER_KUBERNETES_IMAGE": "registry.example/toolformer-ops:0.1.0",
        "TOOLFORMER_KUBERNETES_TEMPLATES": "/opt/toolformer/deploy/pod-templates/cpu-only",
        "TOOLFORMER_DTYPE": "float32",
        "TOOLFORMER_S3_ENDPOINT_URL": "http://object-store:8333",
    }
    assert ("PersistentVolumeClaim", "toolformer-cache") in base
    assert ("PersistentVolumeClaim", "toolformer-cache") not in trial


def test_doctor_asks_for_the_rights_of_the_role_and_for_no_others() -> None:
    from toolformer_ops.orchestration.doctor import RIGHTS

    rules = named("Role")["start-stage-pods"]["rules"]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert {(f"{resource}/{part}" if part else resource, verb) for resource, part, verb in RIGHTS} == granted


def test_nothing_may_go_in_or_out_but_what_a_policy_lists() -> None:
    policies = named("NetworkPolicy")
    assert policies["deny-all"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    inwards = [
        policy
        for policy in policies.values()
        if "Ingress" in policy["spec"]["policyTypes"] and "ingress" in policy["spec"]
    ]
    assert [policy["spec"]["podSelector"] for policy in inwards] == [{"matchLabels": {"tier": "airflow"}}]


# The Job and the services of the trial


def test_pods_pass_restricted_and_have_pinned_images_limits_and_no_token() -> None:
    for name, spec in pod_specs().items():
        assert pod_security_violations({"spec": spec}, "restricted") == [], name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["serviceAccountName"] == "toolformer", name
        for container in spec["containers"]:
            assert container["image"] == "toolformer-ops" or re.search(r"@sha256:[0-9a-f]{64}$", container["image"]), (
                name
            )
            assert container["resources"]["limits"]["memory"], name


def test_the_trials_services_are_those_of_compose() -> None:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    specs = pod_specs()
    for name in ("postgres", "object-store"):
        assert f":-{specs[name]['containers'][0]['image']}}}" in compose[name]["image"]
    assert specs["object-store"]["containers"][0]["args"] == compose["object-store"]["command"]
    roles = KUBERNETES / "trial" / "postgres-roles.sh"
    mounted = [volume.split(":")[0] for volume in compose["postgres"]["volumes"] if "initdb.d" in volume]
    assert [(REPOSITORY / path).resolve() for path in mounted] == [roles.resolve()]
    assert roles.is_file()


@pytest.mark.parametrize("folder", ["base", "trial"])
def test_pools_are_those_of_the_dags_and_count_deferred_tasks(folder: str) -> None:
    pools = json.loads((KUBERNETES / folder / "pools.json").read_text())
    assert set(pools) == set(POOLS)
    assert all(pool["include_deferred"] is True and pool["slots"] > 0 for pool in pools.values())


# Settings and secrets


def test_the_secrets_template_names_exactly_the_secret_settings_and_no_value() -> None:
    found = variables(KUBERNETES / "secrets" / "toolformer.env")
    assert set(found) == SECRETS_OF_SETTINGS
    assert set(found.values()) == {""}


def test_the_template_of_airflows_secrets_names_what_the_chart_and_the_job_ask_for(values: dict[str, Any]) -> None:
    found = variables(KUBERNETES / "secrets" / "toolformer-airflow.env")
    assert set(found) == KEYS_OF_THE_CHART
    assert set(found.values()) == {""}
    by_name = {values[name] for name in ("fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName")}
    assert by_name | {values["data"]["metadataSecretName"]} == {"toolformer-airflow"}
    asked: dict[str, set[str]] = {}
    for spec in pod_specs().values():
        for variable in spec["containers"][0]["env"]:
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                asked.setdefault(reference["name"], set()).add(reference["key"])
    assert asked["toolformer"] <= SECRETS_OF_SETTINGS
    assert asked["toolformer-airflow"] <= KEYS_OF_THE_CHART


def test_the_trials_secrets_are_whole_new_each_time_and_for_nobody_else(tmp_path: Path) -> None:
    script = KUBERNETES / "trial" / "make-secrets"
    made = []
    for name in ("one", "two"):
        subprocess.run([script, tmp_path / name], check=True, capture_output=True)
        files = sorted((tmp_path / name).iterdir())
        assert [path.stat().st_mode & 0o777 for path in files] == [0o600] * 3
        made.append({path.name: variables(path) for path in files})
    one, two = made
    assert set(one["toolformer.env"]) == SECRETS_OF_SETTINGS
    assert set(one["toolformer-airflow.env"]) == KEYS_OF_THE_CHART
    for file, found in one.items():
        assert all(value and two[file][name] != value for name, value in found.items())
    roles = (KUBERNETES / "trial" / "postgres-roles.sh").read_text()
    assert {name for name in one["toolformer-services.env"] if name in roles} == set(one["toolformer-services.env"]) - {
        "POSTGRES_PASSWORD"
    }
    assert (
        one["toolformer-services.env"]["TOOLFORMER_OWNER_PASSWORD"] in one["toolformer.env"]["TOOLFORMER_DATABASE_DSN"]
    )
    again = subprocess.run([script, tmp_path / "one"], capture_output=True, check=False)
    assert again.returncode != 0


def test_every_setting_exists_is_no_secret_and_has_a_value_that_it_takes(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in settings if name.startswith(ENV_PREFIX)]:
        assert variable.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
        assert variable not in SECRETS_OF_SETTINGS
        monkeypatch.setenv(variable, settings[variable])
    read = Settings(_env_file=None)  # type: ignore[call-arg]
    assert read.runner == "kubernetes"
    assert all(not value.get_secret_value() for value in read.__dict__.values() if isinstance(value, SecretStr))


def test_every_setting_of_airflow_exists(settings: dict[str, str]) -> None:
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


def test_airflow_shows_the_dags_and_schedules_that_compose_shows(settings: dict[str, str]) -> None:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["x-toolformer"]["environment"]
    name = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
    assert json.loads(settings[name]) == json.loads(compose[name])


# Names


def test_names_agree_between_manifests_values_templates_and_settings(
    values: dict[str, Any], settings: dict[str, str]
) -> None:
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    assert (
        list(named("Namespace")) == [defaults["kubernetes_namespace"]] == [settings["TOOLFORMER_KUBERNETES_NAMESPACE"]]
    )
    assert settings["TOOLFORMER_KUBERNETES_SECRET"] == defaults["kubernetes_secret"]
    assert yaml.safe_load(values["extraEnvFrom"]) == [
        {"configMapRef": {"name": "toolformer"}},
        {"secretRef": {"name": defaults["kubernetes_secret"]}},
    ]
    accounts = {
        part: values[part]["serviceAccount"] for part in ("scheduler", "triggerer", "dagProcessor", "apiServer")
    }
    assert all(
        account["create"] is False and account["name"] in named("ServiceAccount") for account in accounts.values()
    )
    (bound,) = named("RoleBinding")["airflow-starts-stage-pods"]["subjects"]
    assert {part for part, account in accounts.items() if account["name"] == bound["name"]} == {
        "scheduler",
        "triggerer",
    }
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for path in (REPOSITORY / "deploy" / "pod-templates").glob("*/*.yaml")
        for volume in yaml.safe_load(path.read_text())["spec"].get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    assert claims == set(named("PersistentVolumeClaim"))
    mounts = {mount["mountPath"] for mount in values["volumeMounts"]}
    assert settings["TOOLFORMER_SCHEDULES_DIR"] in mounts


def test_tool_files_are_where_airflow_and_every_stage_look_for_them(
    values: dict[str, Any], settings: dict[str, str]
) -> None:
    pods = {"airflow": (values["volumes"], values["volumeMounts"])}
    for path in (REPOSITORY / "deploy" / "pod-templates").glob("*/*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        pods[f"{path.parent.name}/{path.name}"] = (spec["volumes"], spec["containers"][0]["volumeMounts"])
    assert len(pods) == 7
    tools = {"name": "toolformer-tools", "optional": True}  # a deployment without any has no such ConfigMap
    for name, (volumes, mounts) in pods.items():
        [volume] = [one["name"] for one in volumes if one.get("configMap") == tools]
        mount = {"name": volume, "mountPath": settings["TOOLFORMER_TOOLS_DIR"], "readOnly": True}
        assert mount in mounts, name


def test_images_are_one_version_everywhere(values: dict[str, Any], settings: dict[str, str]) -> None:
    kustomization = yaml.safe_load((KUBERNETES / "trial" / OF_KUSTOMIZE).read_text())
    (image,) = kustomization["images"]
    name = f"{image['newName']}:{image['newTag']}"
    assert f"{values['images']['airflow']['repository']}:{values['images']['airflow']['tag']}" == name
    assert settings["TOOLFORMER_KUBERNETES_IMAGE"] == f"{name}-cuda"
    version = re.search(r'^version = "(.+)"', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert image["newTag"] == version[1]


def test_an_overlay_as_the_page_shows_it_renders(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    (text,) = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", page, re.DOTALL)
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "mine"
    overlay.mkdir()
    (overlay / OF_KUSTOMIZE).write_text(text)
    found = rendered(overlay)
    job = found["Job", "toolformer-prepare"]["spec"]["template"]["spec"]
    assert job["containers"][0]["image"] == "registry.example.org/team/toolformer-ops:0.1.0"
    assert found["ConfigMap", "toolformer"]["data"]["TOOLFORMER_S3_BUCKET"] == "our-toolformer"
    assert found["PersistentVolumeClaim", "toolformer-cache"]["spec"]["storageClassName"] == "filestore"
    assert ("NetworkPolicy", "stages-to-the-internet") in found


# The chart's values


def test_values_are_for_the_airflow_that_is_locked(values: dict[str, Any]) -> None:
    locks = "".join(path.read_text() for path in REPOSITORY.glob("requirements/*.lock"))
    assert re.search(rf"^apache-airflow=={re.escape(values['airflowVersion'])}\s", locks, re.MULTILINE)


def test_the_charts_pods_pass_restricted_and_call_nothing_that_only_airflows_image_has(values: dict[str, Any]) -> None:
    pod, container = values["securityContexts"]["pod"], values["securityContexts"]["containers"]
    job = pod_specs()["toolformer-prepare"]
    assert {**pod, "fsGroupChangePolicy": None} == {**job["securityContext"], "fsGroupChangePolicy": None}
    assert container == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    probes = [values[part]["livenessProbe"]["command"] for part in ("scheduler", "triggerer", "dagProcessor")]
    assert all(
        command[:3] == ["airflow", "jobs", "check"]
        for command in [*probes, values["scheduler"]["startupProbe"]["command"]]
    )
    groomers = [values[part]["logGroomerSidecar"] for part in ("scheduler", "triggerer", "dagProcessor")]
    assert all(groomer["args"][:2] == ["bash", "-c"] for groomer in groomers)
    assert not {"/entrypoint", "/clean-logs"} & set(json.dumps(values).split())
    assert f"{ENV_PREFIX}AIRFLOW_PASSWORD" in values["apiServer"]["args"][-1]


def test_values_and_page_name_one_version_of_the_chart() -> None:
    found = set()
    for path in ("deploy/airflow-values.yaml", "docs/kubernetes.md"):
        found |= set(re.findall(r"--version ([\d.]+)", (REPOSITORY / path).read_text()))
    assert len(found) == 1
