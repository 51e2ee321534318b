"""What an API server refuses of a pod before it makes it: unknown fields, invalid names, and what Pod Security does not allow.

The wording is Kubernetes' own, since people search for it. Sources: `kubernetes_validate`, which holds Kubernetes' OpenAPI schemas,
and https://kubernetes.io/docs/concepts/security/pod-security-standards/. Not here: host ports, SELinux, AppArmor, sysctls.
"""

import re
from typing import Any

import kubernetes_validate

KUBERNETES_VERSION = "1.37"

LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

RESTRICTED_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")


def wrong_fields(pod: dict[str, Any]) -> str | None:
    """Why the pod is no pod of this version of Kubernetes, or None."""
    try:
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.path)  # type: ignore[attr-defined]
        return f'Pod in version "v1" cannot be handled as a Pod: strict decoding error: {where}: {error.message}'  # type: ignore[attr-defined]
    return None


def wrong_names(pod: dict[str, Any]) -> str | None:
    """Which name or label of the pod is invalid, or None."""
    metadata = pod["metadata"]
    name = metadata["name"]
    if not NAME.fullmatch(name) or len(name) > 253:
        return (
            f'Pod "{name}" is invalid: metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of '
            "lower case alphanumeric characters, '-' or '.'"
        )
    for value in (metadata.get("labels") or {}).values():
        if len(value) > 63:
            return f'Pod "{name}" is invalid: metadata.labels: Invalid value: "{value}": must be no more than 63 characters'
        if not LABEL_VALUE.fullmatch(value):
            return (
                f'Pod "{name}" is invalid: metadata.labels: Invalid value: "{value}": a valid label must be an empty string or '
                "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
            )
    return None


def pod_security_violations(pod: dict[str, Any], level: str) -> list[str]:  # noqa: PLR0912  (a list of rules)
    """What the pod does that `level` (privileged, baseline or restricted) does not allow, as the API server words it."""
    if level == "privileged":
        return []
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    pod_context = spec.get("securityContext") or {}
    contexts = {container["name"]: container.get("securityContext") or {} for container in containers}
    violations = []

    def named(names: list[str]) -> str:
        quoted = ", ".join(f'"{name}"' for name in names)
        return f"container{'s' if len(names) > 1 else ''} {quoted}"

    # baseline
    shared = [f"{name}=true" for name in HOST_NAMESPACES if spec.get(name)]
    if shared:
        violations.append(f"host namespaces ({', '.join(shared)})")
    if names := [name for name, context in contexts.items() if context.get("privileged")]:
        violations.append(f"privileged ({named(names)} must not set securityContext.privileged=true)")
    volumes = {volume["name"]: next(kind for kind in volume if kind != "name") for volume in spec.get("volumes") or []}
    if names := [name for name, kind in volumes.items() if kind == "hostPath"]:
        violations.append(f"hostPath volumes (volume {', '.join(map(repr, names))})".replace("'", '"'))
    if level == "baseline":
        return violations

    # restricted
    if names := [name for name, context in contexts.items() if context.get("allowPrivilegeEscalation") is not False]:
        violations.append(
            f"allowPrivilegeEscalation != false ({named(names)} must set securityContext.allowPrivilegeEscalation=false)"
        )
    capabilities = {name: context.get("capabilities") or {} for name, context in contexts.items()}
    if names := [name for name, found in capabilities.items() if "ALL" not in (found.get("drop") or [])]:
        violations.append(
            f'unrestricted capabilities ({named(names)} must set securityContext.capabilities.drop=["ALL"])'
        )
    if names := [name for name, found in capabilities.items() if set(found.get("add") or []) - {"NET_BIND_SERVICE"}]:
        violations.append(
            f"unrestricted capabilities ({named(names)} must not include other than NET_BIND_SERVICE in "
            "securityContext.capabilities.add)"
        )
    for name, kind in volumes.items():
        if kind not in RESTRICTED_VOLUMES:
            violations.append(f'restricted volume types (volume "{name}" uses restricted volume type "{kind}")')

    def unsafe(field: str, safe: Any) -> list[str]:
        return [name for name, context in contexts.items() if not safe(context.get(field, pod_context.get(field)))]

    if names := unsafe("runAsNonRoot", lambda value: value is True):
        violations.append(f"runAsNonRoot != true (pod or {named(names)} must set securityContext.runAsNonRoot=true)")
    if names := unsafe("runAsUser", lambda value: value != 0):
        violations.append(f"runAsUser=0 (pod or {named(names)} must not set runAsUser=0)")
    if names := unsafe("seccompProfile", lambda value: (value or {}).get("type") in ("RuntimeDefault", "Localhost")):
        violations.append(
            f"seccompProfile (pod or {named(names)} must set securityContext.seccompProfile.type to "
            '"RuntimeDefault" or "Localhost")'
        )
    return violations
