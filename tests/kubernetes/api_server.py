"""The API server of the cluster of the tests: Kubernetes' REST API over HTTP, as much of it as Airflow and `doctor` use.

It keeps objects as the JSON that came, gives them versions, answers get, list, watch, create, patch and delete, checks the token
and the rights of each request, and asks `admission.py` about pods. What a pod then does is the kubelet's matter, which is told
by `PodWorkers`. One event loop runs it all, so nothing is locked. Not here: TLS, tables, pagination, server-side apply, exec.
"""

import asyncio
import base64
import copy
import json
import math
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from aiohttp import web

from tests.kubernetes import admission

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
    "storageclasses": "StorageClass",
    "services": "Service",
    "jobs": "Job",
    "statefulsets": "StatefulSet",
    "roles": "Role",
    "rolebindings": "RoleBinding",
    "networkpolicies": "NetworkPolicy",
}
"""Of these, pods and jobs do something; the others are kept and shown."""
GROUPS = {
    "storageclasses": "storage.k8s.io",
    "jobs": "batch",
    "statefulsets": "apps",
    "roles": "rbac.authorization.k8s.io",
    "rolebindings": "rbac.authorization.k8s.io",
    "networkpolicies": "networking.k8s.io",
}
"""API groups, all of version v1, of resources that are not in the core group."""
NOT_IN_A_NAMESPACE = ("namespaces", "nodes", "storageclasses")
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
REVIEWS = {"selfsubjectaccessreviews": "SelfSubjectAccessReview"}
PROTOBUF = b"k8s\0"
"""How a body begins that is no JSON."""
LENGTH_DELIMITED = 2
"""The wire type of texts, bytes and messages."""
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
    """What a container has written, line by line with the time, and whether more may come."""

    lines: list[tuple[datetime, bytes]] = field(default_factory=list)
    open: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, line: bytes) -> None:
        self.lines.append((datetime.now(UTC), line))
        self.changed.set()

    def close(self) -> None:
        self.open = False
        self.changed.set()

    async def read(
        self, *, follow: bool, since: datetime | None, tail: int | None
    ) -> AsyncIterator[tuple[datetime, bytes]]:
        """The lines since then; with `follow` also those to come, until the log is closed."""
        position = 0 if tail is None else max(0, len(self.lines) - tail)
        while True:
            while position < len(self.lines):
                if since is None or self.lines[position][0] >= since:
                    yield self.lines[position]
                position += 1
            if not (follow and self.open):
                return
            self.changed.clear()
            await self.changed.wait()


class PodWorkers(Protocol):
    """What the kubelets do for the API server."""

    def refuse_unsupported(self, pod: Json) -> None:
        """ApiError where a valid pod needs something that the cluster of the tests cannot do."""

    def accept(self, pod: Json) -> None:
        """Start to work on a pod that was just made."""

    def accept_job(self, job: Json) -> None:
        """Start to work on a Job that was just made."""

    def end(self, pod: Json, grace_seconds: int) -> None:
        """A pod is to be deleted; `Objects.remove` is called when it has ended."""

    def log(self, pod: Json) -> Log:
        """The log of its container; ApiError while there is none."""


class Objects:
    """All objects by resource, namespace and name; each change gets the next version and is told to those who watch."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Json] = {}
        self._changes: list[tuple[int, str, str, Json]] = []  # version, type, resource, object
        self._changed = asyncio.Event()
        self.version = 1

    def add(self, resource: str, new: Json) -> Json:
        metadata = new["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        if key in self._objects:
            raise ApiError(409, "AlreadyExists", f'{resource} "{metadata["name"]}" already exists')
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now())
        new.update(kind=KINDS[resource], apiVersion=api_version(resource))
        self._objects[key] = new
        self._tell(resource, new, "ADDED")
        return new

    def changed(self, resource: str, changed: Json) -> None:
        """Tell of a change that was made in the object itself."""
        if self.has(resource, changed):
            self._tell(resource, changed, "MODIFIED")

    def _tell(self, resource: str, changed: Json, kind: str) -> None:
        self.version += 1
        changed["metadata"]["resourceVersion"] = str(self.version)
        self._changes.append((self.version, kind, resource, copy.deepcopy(changed)))
        self._changed.set()
        self._changed = asyncio.Event()

    def get(self, resource: str, namespace: str, name: str) -> Json:
        try:
            return self._objects[resource, namespace, name]
        except KeyError:
            raise ApiError(404, "NotFound", f'{resource} "{name}" not found') from None

    def has(self, resource: str, wanted: Json) -> bool:
        """Whether this very object is still there."""
        metadata = wanted["metadata"]
        return self._objects.get((resource, metadata.get("namespace", ""), metadata["name"])) is wanted

    def list(self, resource: str, namespace: str = "") -> list[Json]:
        return [
            found
            for (found_resource, found_namespace, _), found in self._objects.items()
            if found_resource == resource and namespace in ("", found_namespace)
        ]

    def remove(self, resource: str, removed: Json) -> None:
        """Take the object away, unless a finalizer holds it."""
        metadata = removed["metadata"]
        if metadata.get("finalizers") or not self.has(resource, removed):
            return
        del self._objects[resource, metadata.get("namespace", ""), metadata["name"]]
        self._tell(resource, removed, "DELETED")

    async def watch(self, resource: str, since: int) -> AsyncIterator[tuple[str, Json]]:
        """All changes of a resource after a version: those that were, and those to come."""
        position = 0
        while True:
            while position < len(self._changes):
                version, kind, found, changed = self._changes[position]
                position += 1
                if version > since and found == resource:
                    yield kind, changed
            await self._changed.wait()


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

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:  # noqa: PLR0911, PLR0912  (a table of verbs)
        # 1. Who asks for what: /api/v1/namespaces/NAMESPACE/RESOURCE/NAME/PART, /api/v1/RESOURCE/NAME, /apis/GROUP/v1/...
        path = request.path.strip("/").split("/")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if path[0] == "token":  # kubectl sends a header to servers with TLS alone
            token, path = path[1], path[2:]
        user = self.users.get(token)
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if path == ["version"]:
            minor = admission.KUBERNETES_VERSION.partition(".")[2]
            unsaid = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform")
            return as_json({"major": "1", "minor": minor, "gitVersion": "v1.37.0", **dict.fromkeys(unsaid, "")})
        if found := discovery(path):
            return as_json(found)
        group, path = ("", path[2:]) if path[0] == "api" else (path[1], path[3:]) if path[0] == "apis" else ("", [])
        namespace = ""
        if len(path) > 2 and path[0] == "namespaces":
            namespace, path = path[1], path[2:]
        resource, name, part = (*path, "", "", "")[:3]
        if resource not in (*KINDS, *REVIEWS):
            raise ApiError(404, "NotFound", f"the cluster of the tests has no {request.path}")
        verb = VERBS.get(request.method, request.method.lower())
        if verb == "get" and not name:
            verb = "watch" if request.query.get("watch") in ("true", "True", "1") else "list"
        if verb == "delete" and not name:
            verb = "deletecollection"

        # 2. Whether they may.
        asked = f"{resource}/{part}" if part else resource
        self.requests[verb, asked, user.name] += 1
        if resource in REVIEWS:  # everybody may ask what they may
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
        if verb == "watch":
            return await self._watch(request, resource, namespace, selector(query))
        if verb == "create" and not name:
            body = await request.read()
            new = secret_from_protobuf(body) if body.startswith(PROTOBUF) else json.loads(body)
            return as_json(self._create(resource, namespace, new), 201)
        if verb in ("get", "patch", "delete") and name:
            found = self.objects.get(resource, namespace, name)
            if (verb, asked) == ("get", "pods/log"):
                return await self._log(request, found)
            if part and part != "status":
                raise ApiError(404, "NotFound", f"the cluster of the tests has no {asked}")
            if verb == "patch":
                self._patch(resource, found, await request.json())
            if verb == "delete":
                body = await request.json() if request.body_exists else {}
                self._delete(resource, found, {**query, **(body or {})})
            return as_json(found)
        raise ApiError(405, "MethodNotAllowed", f"the cluster of the tests cannot {verb} {asked}")

    # The verbs

    def _list(self, resource: str, namespace: str, selects: Callable[[Json], bool]) -> web.Response:
        items = [found for found in self.objects.list(resource, namespace) if selects(found)]
        metadata = {"resourceVersion": str(self.objects.version)}
        version = api_version(resource)
        return as_json({"kind": f"{KINDS[resource]}List", "apiVersion": version, "metadata": metadata, "items": items})

    async def _watch(
        self, request: web.BaseRequest, resource: str, namespace: str, selects: Callable[[Json], bool]
    ) -> web.StreamResponse:
        """A line of JSON for each change, until `timeoutSeconds`."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def send(kind: str, found: Json) -> None:
            if selects(found) and namespace in ("", found["metadata"].get("namespace", "")):
                await response.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")

        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(float(request.query.get("timeoutSeconds") or 3600)):
                since = int(request.query.get("resourceVersion") or 0)
                if not since:  # from now on, after what is there
                    since = self.objects.version
                    for found in self.objects.list(resource, namespace):
                        await send("ADDED", found)
                async for kind, found in self.objects.watch(resource, since):
                    await send(kind, found)
        return response

    def _create(self, resource: str, namespace: str, new: Json) -> Json:
        metadata = new.setdefault("metadata", {})
        if resource not in NOT_IN_A_NAMESPACE:
            if metadata.setdefault("namespace", namespace) != namespace:
                raise ApiError(
                    400,
                    "BadRequest",
                    "the namespace of the provided object does not match the namespace sent on the request",
                )
            self.objects.get("namespaces", "", namespace)
        if "name" not in metadata and "generateName" in metadata:
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if resource == "pods":
            self.admit_pod(new)
        if resource == "persistentvolumeclaims":
            new["status"] = {"phase": "Bound"}
        self.objects.add(resource, new)
        if resource == "pods":
            self.workers.accept(new)
        if resource == "jobs":
            self.workers.accept_job(new)
        return new

    def admit_pod(self, pod: Json) -> None:
        """Refuse what Kubernetes refuses, and fill in its defaults."""
        pod.setdefault("kind", "Pod")
        pod.setdefault("apiVersion", "v1")
        if refusal := admission.wrong_fields(pod):
            raise ApiError(400, "BadRequest", refusal)
        if refusal := admission.wrong_names(pod):
            raise ApiError(422, "Invalid", refusal)
        metadata, spec = pod["metadata"], pod["spec"]
        account = spec.setdefault("serviceAccountName", "default")
        try:
            self.objects.get("serviceaccounts", metadata["namespace"], account)
        except ApiError as error:
            looked_up = f"error looking up service account {metadata['namespace']}/{account}: {error}"
            raise ApiError(403, "Forbidden", f'pods "{metadata["name"]}" is forbidden: {looked_up}') from None
        labels = self.objects.get("namespaces", "", metadata["namespace"])["metadata"].get("labels") or {}
        level = labels.get("pod-security.kubernetes.io/enforce", "privileged")
        if violations := admission.pod_security_violations(pod, level):
            refusal = f'pods "{metadata["name"]}" is forbidden: violates PodSecurity "{level}:latest": {", ".join(violations)}'
            raise ApiError(403, "Forbidden", refusal)
        for name, value in (
            ("restartPolicy", "Always"),
            ("terminationGracePeriodSeconds", 30),
            ("schedulerName", "default-scheduler"),
        ):
            spec.setdefault(name, value)
        self.workers.refuse_unsupported(pod)
        pod["status"] = {"phase": "Pending", "qosClass": "Burstable"}

    def _patch(self, resource: str, found: Json, patch: Json) -> None:
        """Merge (RFC 7386) into the metadata; of a strategic merge patch, lists of finalizers are joined."""
        if not isinstance(patch, dict) or (resource == "pods" and set(patch) - {"metadata", "apiVersion", "kind"}):
            raise ApiError(
                422,
                "Invalid",
                f"the cluster of the tests patches metadata and nothing else of a pod; found: {json.dumps(patch)[:200]}",
            )
        merge(found, {name: value for name, value in patch.items() if name != "metadata"})
        changes = dict(patch.get("metadata") or {})
        remove = changes.pop("$deleteFromPrimitiveList/finalizers", [])
        merge(found["metadata"], changes)
        if remove:
            found["metadata"]["finalizers"] = [
                name for name in found["metadata"].get("finalizers") or [] if name not in remove
            ]
        self.objects.changed(resource, found)
        if found["metadata"].get("deletionTimestamp") and found.get("status", {}).get("phase") in ENDED_PHASES:
            self.objects.remove(resource, found)

    def _delete(self, resource: str, found: Json, options: Mapping[str, Any]) -> None:
        metadata = found["metadata"]
        wanted = (options.get("preconditions") or {}).get("uid", metadata["uid"])
        if wanted != metadata["uid"]:
            raise ApiError(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {resource} "{metadata["name"]}": the UID in the precondition ({wanted}) does '
                f"not match the UID in record ({metadata['uid']}). The object might have been deleted and then recreated",
            )
        if resource != "pods":
            self.objects.remove(resource, found)
            return
        self.delete_pod(found, options.get("gracePeriodSeconds"))

    def delete_pod(self, found: Json, asked: float | None = None) -> None:
        """Mark the pod as deleted, and have its kubelet end it within its own grace period or this one."""
        metadata = found["metadata"]
        grace = int(found["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)
        if grace < metadata.get("deletionGracePeriodSeconds", math.inf):  # a second request may only shorten
            metadata["deletionTimestamp"] = now(plus_seconds=grace)  # by when it is to be gone
            metadata["deletionGracePeriodSeconds"] = grace
        self.objects.changed("pods", found)
        self.workers.end(found, metadata["deletionGracePeriodSeconds"])

    async def _log(self, request: web.BaseRequest, pod: Json) -> web.StreamResponse:
        """The container's log, of which `follow` streams the end."""
        query = request.query
        container = query.get("container")
        if container not in (None, pod["spec"]["containers"][0]["name"]):
            raise ApiError(400, "BadRequest", f"container {container} is not valid for pod {pod['metadata']['name']}")
        log = self.workers.log(pod)
        since = None
        if "sinceSeconds" in query:
            since = datetime.fromtimestamp(datetime.now(UTC).timestamp() - int(query["sinceSeconds"]), UTC)
        if "sinceTime" in query:
            since = datetime.fromisoformat(query["sinceTime"])
        tail = int(query["tailLines"]) if "tailLines" in query else None
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with suppress(ConnectionError):
            async for time, line in log.read(follow=query.get("follow") in ("true", "True"), since=since, tail=tail):
                stamp = (
                    f"{time:%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() if query.get("timestamps") in ("true", "True") else b""
                )
                await response.write(stamp + line + b"\n")
        return response

    def _review(self, user: User, review: Json) -> Json:
        """Whether the user may do what the review describes."""
        asked = review["spec"]["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        allowed = user.may(asked["verb"], asked.get("group", ""), resource, asked.get("name", ""))
        return {**review, "status": {"allowed": allowed}}


def api_version(resource: str) -> str:
    """What objects of this resource have as `apiVersion`."""
    return f"{GROUPS[resource]}/v1" if resource in GROUPS else "v1"


def discovery(path: Sequence[str]) -> Json | None:
    """What kubectl asks first: which resources there are; and that unknown fields are refused here. None for any other path."""
    groups = sorted(set(GROUPS.values()))
    if path == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == ["apis"]:
        versions = {group: {"groupVersion": f"{group}/v1", "version": "v1"} for group in groups}
        found = [{"name": name, "versions": [only], "preferredVersion": only} for name, only in versions.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    if path == ["openapi", "v3"]:
        parts = ["api/v1", *(f"apis/{group}/v1" for group in groups)]
        return {"paths": {part: {"serverRelativeURL": f"/openapi/v3/{part}"} for part in parts}}
    validated = path[:2] == ["openapi", "v3"]
    path = path[2:] if validated else path
    group = path[1] if path[0] == "apis" else ""
    if path != (["apis", group, "v1"] if group else ["api", "v1"]):
        return None
    here = [resource for resource in KINDS if GROUPS.get(resource, "") == group]
    if validated:
        checked = [{"name": "fieldValidation", "in": "query"}]
        kinds = {resource: {"group": group, "version": "v1", "kind": KINDS[resource]} for resource in here}
        patches = {
            f"/{name}": {"patch": {"x-kubernetes-group-version-kind": kind, "parameters": checked}}
            for name, kind in kinds.items()
        }
        return {"openapi": "3.0.0", "info": {"title": "tests", "version": "1"}, "paths": patches}
    resources = [
        {
            "name": resource,
            "singularName": KINDS[resource].lower(),
            "namespaced": resource not in NOT_IN_A_NAMESPACE,
            "kind": KINDS[resource],
            "verbs": ["create", "delete", "get", "list", "patch", "watch"],
        }
        for resource in here
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/v1" if group else "v1",
        "resources": resources,
    }


def secret_from_protobuf(body: bytes) -> Json:
    """The Secret that `kubectl create secret` sends: not as JSON, but in Kubernetes' envelope of protobuf."""

    def parts(data: bytes) -> Iterator[tuple[int, bytes]]:
        """Number and content of all fields, which are texts, bytes or messages here."""
        position = 0

        def number() -> int:
            nonlocal position
            value = shift = 0
            while True:
                byte = data[position]
                position += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value

        while position < len(data):
            key = number()
            length = number()
            if key & 7 == LENGTH_DELIMITED:
                yield key >> 3, data[position : position + length]
                position += length

    raw = dict(parts(body.removeprefix(PROTOBUF)))[2]
    secret: Json = {"metadata": {}, "data": {}, "type": "Opaque"}
    for place, value in parts(raw):
        entry = dict(parts(value)) if place in (1, 2) else {}
        if place == 1:
            secret["metadata"]["name"] = entry[1].decode()
        elif place == 2:
            secret["data"][entry[1].decode()] = base64.b64encode(entry.get(2, b"")).decode()
    return secret


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
