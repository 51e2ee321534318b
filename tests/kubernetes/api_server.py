"""The API server of the cluster of the tests: Kubernetes' REST API over HTTP, as much of it as Airflow and `doctor` use.

It keeps objects as the JSON that came, gives them versions, answers get, list, watch, create, patch and delete, checks the token
and the rights of each request, and asks `admission.py` about pods. What a pod then does is the kubelet's matter, which is told
by `PodWorkers`. One event loop runs it all, so nothing is locked. Not here: TLS, tables, pagination, server-side apply, exec.
"""

import math
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from aiohttp import web

from tests.kubernetes.admission import KUBERNETES_VERSION, refusal

Json = dict[str, Any]

KINDS = {
    "pods": "Pod",
    "events": "Event",
    "secrets": "Secret",
    "configmaps": "ConfigMap",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "serviceaccounts": "ServiceAccount",
    "namespaces": "Namespace",
    "nodes": "Node",
}
"""Of these, pods do something; the others are kept and shown."""
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
REVIEW = "selfsubjectaccessreviews"
ENDED_PHASES = ("Succeeded", "Failed")


class ApiError(Exception):
    """A request is refused; the client gets a `Status` with this code, reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


def now(plus_seconds: float = 0) -> str:
    """The time, or one so much later, as Kubernetes writes it, in whole seconds."""
    return (datetime.now(UTC) + timedelta(seconds=plus_seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class User:
    """Who sends a token, and what a Role and a ClusterRole allow them; no rules at all: everything."""

    name: str
    rules: tuple[Mapping[str, Any], ...] | None = None
    """As in a manifest: apiGroups, resources, verbs, perhaps resourceNames."""

    def may(self, verb: str, group: str, resource: str, name: str = "") -> bool:
        """Whether some rule allows this."""
        if self.rules is None:
            return True

        def holds(allowed: Iterable[str], asked: str) -> bool:
            return "*" in allowed or asked in allowed

        return any(
            holds(rule["verbs"], verb)
            and holds(rule.get("apiGroups", [""]), group)
            and holds(rule["resources"], resource)
            and (not rule.get("resourceNames") or name in rule["resourceNames"])
            for rule in self.rules
        )


@dataclass
class Log:
    """What a container has written, line by line with the time."""

    lines: list[tuple[datetime, bytes]] = field(default_factory=list)

    def add(self, line: bytes) -> None:
        self.lines.append((datetime.now(UTC), line))


class PodWorkers(Protocol):
    """What the kubelets do for the API server."""

    def accept(self, pod: Json) -> None:
        """Start to work on a pod that was just made."""

    def end(self, pod: Json, grace_seconds: int) -> None:
        """A pod is to be deleted; `Objects.remove` is called when it has ended."""

    def log(self, pod: Json) -> Log:
        """The log of its container; ApiError while there is none."""


class Objects:
    """All objects by resource, namespace and name."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Json] = {}

    def add(self, resource: str, new: Json) -> Json:
        metadata = new["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        if key in self._objects:
            raise ApiError(409, "AlreadyExists", f'{resource} "{metadata["name"]}" already exists')
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now())
        new.update(kind=KINDS[resource], apiVersion="v1")
        self._objects[key] = new
        return new

    def get(self, resource: str, namespace: str, name: str) -> Json:
        try:
            return self._objects[resource, namespace, name]
        except KeyError:
            raise ApiError(404, "NotFound", f'{resource} "{name}" not found') from None

    def list(self, resource: str, namespace: str = "") -> list[Json]:
        return [
            found
            for (found_resource, found_namespace, _), found in self._objects.items()
            if found_resource == resource and namespace in ("", found_namespace)
        ]

    def remove(self, resource: str, removed: Json) -> None:
        """Take this very object away, if it is still there."""
        metadata = removed["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        if self._objects.get(key) is removed:
            del self._objects[key]


class ApiServer:
    """The HTTP server. Its port stays the same over an outage."""

    def __init__(self, objects: Objects, workers: PodWorkers, users: Mapping[str, User]) -> None:
        self.objects = objects
        self.workers = workers
        self.users = dict(users)
        """By token."""
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """How often which user asked for which verb and resource, refused requests included."""
        self.forbidden: list[str] = []
        """What was refused since a Role does not allow it."""
        self.port = 0
        self._runner = web.ServerRunner(web.Server(self._answer, handler_cancellation=True), shutdown_timeout=0.0)

    # The server

    async def start(self) -> None:
        """Listen, at first on a free port."""
        await self._runner.setup()
        await self.listen()

    async def listen(self) -> None:
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Close the port and cut every connection, until `listen`."""
        for site in list(self._runner.sites):
            await site.stop()
        for connection in list(self._runner.server.connections):  # type: ignore[union-attr]
            if connection.transport is not None:
                connection.transport.abort()

    async def stop(self) -> None:
        await self.refuse()
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._dispatch(request)
        except ApiError as error:
            return as_json(status_object(error.code, error.reason, str(error)), error.code)

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:  # noqa: PLR0912  (a table of verbs)
        # 1. Who asks for what: /api/v1/namespaces/NAMESPACE/RESOURCE/NAME/PART, /api/v1/RESOURCE/NAME, /apis/GROUP/v1/...
        path = request.path.strip("/").split("/")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        user = self.users.get(token)
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if path == ["version"]:
            minor = KUBERNETES_VERSION.partition(".")[2]
            unsaid = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform")
            return as_json({"major": "1", "minor": minor, "gitVersion": "v1.37.0", **dict.fromkeys(unsaid, "")})
        group, path = ("", path[2:]) if path[0] == "api" else (path[1], path[3:]) if path[0] == "apis" else ("", [])
        namespace = ""
        if len(path) > 2 and path[0] == "namespaces":
            namespace, path = path[1], path[2:]
        resource, name, part = (*path, "", "", "")[:3]
        if resource not in (*KINDS, REVIEW):
            raise ApiError(404, "NotFound", f"the cluster of the tests has no {request.path}")
        verb = VERBS.get(request.method, request.method.lower())
        if verb == "get" and not name:
            verb = "list"

        # 2. Whether they may.
        asked = f"{resource}/{part}" if part else resource
        self.requests[verb, asked, user.name] += 1
        if resource == REVIEW:  # everybody may ask what they may
            return as_json(self._review(user, await request.json()), 201)
        if not user.may(verb, group, asked, name):
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            which = f'{resource} "{name}"' if name else resource
            refusal = f'{which} is forbidden: User "{user.name}" cannot {verb} resource "{asked}" in API group "{group}" {where}'
            self.forbidden.append(refusal)
            raise ApiError(403, "Forbidden", refusal)

        # 3. The answer.
        query = request.query
        if verb == "list":
            return self._list(resource, namespace, selector(query))
        if verb == "create" and not name:
            new = await request.json()
            return as_json(self._create(resource, namespace, new, is_dry_run=query.get("dryRun") == "All"), 201)
        if verb in ("get", "patch", "delete") and name:
            found = self.objects.get(resource, namespace, name)
            if (verb, asked) == ("get", "pods/log"):
                return self._log(query, found)
            if part and part != "status":
                raise ApiError(404, "NotFound", f"the cluster of the tests has no {asked}")
            if verb == "patch":
                self._patch(found, await request.json())
            if verb == "delete":
                body = await request.json() if request.body_exists else {}
                self._delete(resource, found, {**query, **(body or {})})
            return as_json(found)
        raise ApiError(405, "MethodNotAllowed", f"the cluster of the tests cannot {verb} {asked}")

    # The verbs

    def _list(self, resource: str, namespace: str, selects: Callable[[Json], bool]) -> web.Response:
        items = [found for found in self.objects.list(resource, namespace) if selects(found)]
        return as_json({"kind": f"{KINDS[resource]}List", "apiVersion": "v1", "metadata": {}, "items": items})

    def _create(self, resource: str, namespace: str, new: Json, *, is_dry_run: bool) -> Json:
        new.setdefault("metadata", {})["namespace"] = namespace
        if resource == "pods":
            self.admit_pod(new)
        if is_dry_run:
            return new
        self.objects.add(resource, new)
        if resource == "pods":
            self.workers.accept(new)
        return new

    def admit_pod(self, pod: Json) -> None:
        """Refuse what Kubernetes refuses, and fill in its defaults."""
        pod |= {"kind": "Pod", "apiVersion": "v1"}
        if refused := refusal(pod):
            code, message = refused
            raise ApiError(code, {400: "BadRequest", 403: "Forbidden", 422: "Invalid"}[code], message)
        spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "serviceAccountName": "default"} | pod[
            "spec"
        ]
        self.objects.get("serviceaccounts", pod["metadata"]["namespace"], spec["serviceAccountName"])
        pod |= {"spec": spec, "status": {"phase": "Pending", "qosClass": "Burstable"}}

    def _patch(self, found: Json, patch: Json) -> None:
        """Merge (RFC 7386) into the metadata; Airflow patches nothing else of a pod."""
        merge(found["metadata"], patch["metadata"])

    def _delete(self, resource: str, found: Json, options: Mapping[str, Any]) -> None:
        if resource == "pods":
            self.delete_pod(found, options.get("gracePeriodSeconds"))
        else:
            self.objects.remove(resource, found)

    def delete_pod(self, found: Json, asked: float | None = None) -> None:
        """Mark the pod as deleted, and have its kubelet end it within its own grace period or this one."""
        metadata = found["metadata"]
        grace = int(found["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)
        if grace < metadata.get("deletionGracePeriodSeconds", math.inf):  # a second request may only shorten
            metadata["deletionTimestamp"] = now(plus_seconds=grace)  # by when it is to be gone
            metadata["deletionGracePeriodSeconds"] = grace
        self.workers.end(found, metadata["deletionGracePeriodSeconds"])

    def _log(self, query: Mapping[str, str], pod: Json) -> web.Response:
        """What the container has written until now: nobody here follows a log."""
        container = query.get("container")
        if container not in (None, pod["spec"]["containers"][0]["name"]):
            raise ApiError(400, "BadRequest", f"container {container} is not valid for pod {pod['metadata']['name']}")
        lines = self.workers.log(pod).lines[-int(query.get("tailLines", 0)) :]
        if "sinceSeconds" in query:
            since = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
            lines = [line for line in lines if line[0] >= since]
        has_time = query.get("timestamps") in ("true", "True")
        stamps = [f"{time:%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() if has_time else b"" for time, _ in lines]
        text = b"".join(stamp + line + b"\n" for stamp, (_, line) in zip(stamps, lines, strict=True))
        return web.Response(body=text, content_type="text/plain")

    def _review(self, user: User, review: Json) -> Json:
        """Whether the user may do what the review describes."""
        asked = review["spec"]["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        allowed = user.may(asked["verb"], asked.get("group", ""), resource, asked.get("name", ""))
        return {**review, "status": {"allowed": allowed}}


def merge(target: Json, patch: Mapping[str, Any]) -> None:
    """JSON merge patch (RFC 7386): null removes, a mapping is merged, everything else replaces."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(target.get(name), dict):
                target[name] = {}
            merge(target[name], value)
        else:
            target[name] = value


def selector(query: Mapping[str, str]) -> Callable[[Json], bool]:
    """Whether an object has the labels and fields that the query asks for."""
    # Commas separate requirements, but not inside of `key in (a,b)`.
    labels = [term.strip() for term in re.split(r",(?![^(]*\))", query.get("labelSelector", "")) if term.strip()]
    fields = [term.strip() for term in query.get("fieldSelector", "").split(",") if term.strip()]

    def has_label(found: Mapping[str, str], term: str) -> bool:
        if sets := re.fullmatch(r"(\S+)\s+(in|notin)\s+\((.*)\)", term):
            values = [value.strip() for value in sets[3].split(",")]
            return (found.get(sets[1]) in values) is (sets[2] == "in")
        if compared := re.fullmatch(r"([^!=\s]+)\s*(==|=|!=)\s*(.*)", term):
            return (found.get(compared[1]) == compared[3]) is (compared[2] != "!=")
        return term[1:] not in found if term.startswith("!") else term in found

    def has_field(found: Any, term: str) -> bool:
        path, comparison, value = re.fullmatch(r"([^!=]+)(==|=|!=)(.*)", term).groups()  # type: ignore[union-attr]
        for name in path.split("."):
            found = (found or {}).get(name)
        return (str(found or "") == value) is (comparison != "!=")

    return lambda found: (
        all(has_label(found["metadata"].get("labels") or {}, term) for term in labels)
        and all(has_field(found, term) for term in fields)
    )


def as_json(body: Json, code: int = 200) -> web.Response:
    """An answer."""
    return web.json_response(body, status=code)


def status_object(code: int, reason: str, message: str) -> Json:
    """The body of a refusal."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "metadata": {},
    }
