"""What an API server refuses of a pod: unknown fields, invalid names, and what Pod Security "restricted" does not allow.

Sources: `kubernetes_validate`, which holds Kubernetes' OpenAPI schemas, and
https://kubernetes.io/docs/concepts/security/pod-security-standards/. Not here: host ports, SELinux, AppArmor,
sysctls.
"""

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate

KUBERNETES_VERSION = "1.37"

LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
RESTRICTED_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)


def refusal(pod: dict[str, Any]) -> tuple[int, str] | None:
    """The status and the message with which Kubernetes refuses the pod in a namespace that is "restricted"; None if it takes it."""
    metadata = pod["metadata"]
    name = metadata["name"]
    try:
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return 400, f"Pod cannot be handled as a Pod: strict decoding error: {error.message}"  # type: ignore[attr-defined]
    if not NAME.fullmatch(name) or len(name) > 253:
        return (
            422,
            f'Pod "{name}" is invalid: metadata.name: Invalid value: a lowercase RFC 1123 subdomain is expected',
        )
    for value in (metadata.get("labels") or {}).values():
        if len(value) > 63 or not LABEL_VALUE.fullmatch(value):
            return 422, f'Pod "{name}" is invalid: metadata.labels: Invalid value: "{value}"'
    if violations := list(pod_security_violations(pod["spec"])):
        return (
            403,
            f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {", ".join(violations)}',
        )
    return None


def pod_security_violations(spec: dict[str, Any]) -> Iterator[str]:
    """What the pod does that "restricted" does not allow."""
    yield from (f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes") or []:
        if set(volume) - {"name"} - RESTRICTED_VOLUMES:
            yield f"restricted volume types (volume {volume['name']})"
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        own = container.get("securityContext") or {}
        context = {**(spec.get("securityContext") or {}), **own}
        capabilities = own.get("capabilities") or {}
        for field, is_allowed in (
            ("privileged", not own.get("privileged")),
            ("allowPrivilegeEscalation", own.get("allowPrivilegeEscalation") is False),
            ("capabilities.drop", "ALL" in (capabilities.get("drop") or [])),
            ("capabilities.add", set(capabilities.get("add") or []) <= {"NET_BIND_SERVICE"}),
            ("runAsNonRoot", context.get("runAsNonRoot") is True),
            ("runAsUser", context.get("runAsUser") != 0),
            (
                "seccompProfile",
                (context.get("seccompProfile") or {}).get("type") in ("RuntimeDefault", "Localhost"),
            ),
        ):
            if not is_allowed:
                yield f"{field} (container {container['name']})"
