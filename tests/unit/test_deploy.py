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
from toolformer_ops.config import ENV_PREFIX, REPOSITORY, Settings

KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
OF_KUSTOMIZE = "kustomization.yaml"
COMPONENTS = ("internet", "eks-pod-identity", "gke-workload-identity", "shared-cache")
"""Those that bring manifests."""
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


@pytest.mark.parametrize("folder", ["base", *COMPONENTS, "trial"])
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
    assert "PersistentVolumeClaim" not in {kind for kind, _ in base | trial}, "few clusters have one for many nodes"


def test_doctor_asks_for_the_rights_of_the_role_and_for_no_others() -> None:
    from toolformer_ops.airflow_tasks.doctor import RIGHTS

    rules = named("Role")["start-stage-pods"]["rules"]
    granted = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert {(f"{resource}/{part}" if part else resource, verb) for resource, part, verb in RIGHTS} == granted


def test_nothing_may_go_in_or_out_but_what_a_policy_lists() -> None:
    policies = named("NetworkPolicy")
    assert policies["deny-all"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    inwards = [policy["spec"]["podSelector"] for policy in policies.values() if "ingress" in policy["spec"]]
    assert inwards == [{"matchLabels": {"tier": "airflow"}}]
    (names,) = policies["names"]["spec"]["egress"]  # OpenShift's DNS pods listen on 5353
    assert {(port["port"], port["protocol"]) for port in names["ports"]} == {
        (number, protocol) for number in (53, 5353) for protocol in ("UDP", "TCP")
    }


def test_the_trials_services_are_reached_by_label_and_not_by_address() -> None:
    """Cilium matches no ipBlock with the address of a pod (cilium issues 14497 and 19601)."""
    trial = KUBERNETES / "trial"
    opened = {
        (peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"], port["port"])
        for policy in named("NetworkPolicy", trial).values()
        if policy["spec"]["policyTypes"] == ["Egress"] and policy["spec"]["podSelector"] == {}
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        for port in rule["ports"]
    }
    services = named("Service", trial).values()
    assert opened == {
        (service["spec"]["selector"]["app.kubernetes.io/name"], port["port"])
        for service in services
        for port in service["spec"]["ports"]
    }


def test_a_cloud_says_who_a_pod_is_only_with_its_own_component() -> None:
    link_local = ipaddress.ip_network("169.254.0.0/16")
    opened: dict[str, set[tuple[str, int]]] = {}
    for folder in ("base", "trial", *COMPONENTS):
        rules = [
            rule
            for one in named("NetworkPolicy", KUBERNETES / folder).values()
            for rule in one["spec"].get("egress", ())
        ]
        for ports, block in [(one["ports"], peer.get("ipBlock")) for one in rules for peer in one.get("to", ())]:
            network = ipaddress.ip_network(block["cidr"] if block else "::/0")
            if network.version == 4 and network.overlaps(link_local) and str(link_local) not in block.get("except", ()):
                opened.setdefault(folder, set()).update((str(network), port["port"]) for port in ports)
    assert opened == {
        "eks-pod-identity": {("169.254.170.23/32", 80)},
        "gke-workload-identity": {
            (address, port) for address in ("169.254.169.254/32", "169.254.169.252/32") for port in (80, 988)
        },
    }


# The Job and the services of the trial


def test_pods_pass_restricted_and_have_pinned_images_limits_and_no_token() -> None:
    for name, spec in pod_specs().items():
        assert list(pod_security_violations(spec)) == [], name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["serviceAccountName"] == "toolformer", name
        for container in spec["containers"]:
            assert re.search(r"^toolformer-ops$|@sha256:[0-9a-f]{64}$", container["image"]), name
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
    assert claims == set(), "a cache of its own in each pod"
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


def test_versions_of_image_airflow_and_chart_are_the_same_everywhere(
    values: dict[str, Any], settings: dict[str, str]
) -> None:
    (image,) = yaml.safe_load((KUBERNETES / "trial" / OF_KUSTOMIZE).read_text())["images"]
    name = f"{image['newName']}:{image['newTag']}"
    assert f"{values['images']['airflow']['repository']}:{values['images']['airflow']['tag']}" == name
    assert settings["TOOLFORMER_KUBERNETES_IMAGE"] == f"{name}-cuda"
    assert f'\nversion = "{image["newTag"]}"\n' in (REPOSITORY / "pyproject.toml").read_text()
    locks = "".join(path.read_text() for path in REPOSITORY.glob("requirements/*.lock"))
    assert re.search(rf"^apache-airflow=={re.escape(values['airflowVersion'])}\s", locks, re.MULTILINE)
    texts = [(REPOSITORY / path).read_text() for path in ("deploy/airflow-values.yaml", "docs/kubernetes.md")]
    assert len({version for text in texts for version in re.findall(r"--version ([\d.]+)", text)}) == 1


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
    assert {("NetworkPolicy", "to-eks-pod-identity"), ("NetworkPolicy", "to-gke-workload-identity")}.isdisjoint(found)
    assert ("NetworkPolicy", "stages-to-the-internet") in found


@pytest.mark.parametrize(
    "path",
    sorted((REPOSITORY / "deploy" / "pod-templates").glob("*/*.yaml")),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_a_pod_asks_for_the_disk_that_its_cache_may_fill_and_can_share_one(path: Path) -> None:
    (stage,) = yaml.safe_load(path.read_text())["spec"]["containers"]
    (limit,) = [float(variable["value"]) for variable in stage["env"] if variable["name"] == "TOOLFORMER_CACHE_GIB"]
    disk = stage["resources"]["requests"]["ephemeral-storage"]
    assert disk == stage["resources"]["limits"]["ephemeral-storage"]
    assert limit + 2 <= int(disk.removesuffix("Gi")), "room for /tmp, the state and logs"
    if path.parent.name == "a100":
        shared = yaml.safe_load(
            re.sub(
                r"^    # ( *(?:- name: cache|  persistentVolumeClaim))", r"    \1", path.read_text(), flags=re.MULTILINE
            )
        )
        (cache,) = [volume for volume in shared["spec"]["volumes"] if volume["name"] == "cache"]
        (claim,) = named("PersistentVolumeClaim", KUBERNETES / "shared-cache")
        assert cache["persistentVolumeClaim"]["claimName"] == claim


def test_the_image_gives_libraries_a_home_that_can_be_written() -> None:
    """The image's user has no home folder, and the root file system is read-only."""
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    image = dict(re.findall(r"^(?:ENV|   ) ([A-Z_]+)=(\S+)", dockerfile, re.MULTILINE))
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["x-toolformer"]
    writable = {volume.split(":")[1] for volume in compose["volumes"] if not volume.endswith(":ro")}
    mounts = pod_specs()["toolformer-prepare"]["containers"][0]["volumeMounts"]
    assert image["HOME"] == image["TOOLFORMER_STATE_DIR"]
    assert image["HF_HOME"].startswith(f"{image['HOME']}/")
    assert image["HOME"] in writable & {mount["mountPath"] for mount in mounts}


# The chart's values


KEYS_OF_BUILT_IN_VARIABLES = {
    "AIRFLOW__CORE__FERNET_KEY",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    "AIRFLOW_CONN_AIRFLOW_DB",
    "AIRFLOW__API__SECRET_KEY",
    "AIRFLOW__API_AUTH__JWT_SECRET",
    "AIRFLOW__WEBSERVER__SECRET_KEY",
    "AIRFLOW__CELERY__RESULT_BACKEND",
    "AIRFLOW__CELERY__BROKER_URL",
    "AIRFLOW__ELASTICSEARCH__HOST",
    "AIRFLOW__OPENSEARCH__HOST",
}
"""Of `enableBuiltInSecretEnvVars` in values.schema.json of chart 1.22.0, which allows no others."""


def test_the_chart_knows_each_variable_that_is_switched_off(values: dict[str, Any]) -> None:
    switched = values["enableBuiltInSecretEnvVars"]
    assert set(switched) <= KEYS_OF_BUILT_IN_VARIABLES
    assert switched["AIRFLOW_CONN_AIRFLOW_DB"] is False, "tasks must not read Airflow's database"


def test_a_crowded_node_has_time_to_read_a_dag_file(settings: dict[str, str]) -> None:
    reading = float(settings["AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT"])
    assert 30 < reading < int(settings["AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT"])


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
