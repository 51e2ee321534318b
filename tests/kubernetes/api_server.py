"""The API server of the cluster of the tests: Kubernetes' REST API over HTTP, as much of it as Airflow and `doctor` use.

It keeps objects as the JSON that came, gives them versions, answers get, list, watch, create, patch and
delete, checks the token and the rights of each request, and asks `admission.py` about pods. What a pod then
does is the kubelet's matter, which is told by the cluster. One event loop runs it all, so nothing is locked.
Not here: TLS, tables, pagination, server-side apply, exec.
"""

import math
import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

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
    """Who sends a token, and what a Role allows them; no rules at all: everything."""

    name: str
    rules: tuple[Mapping[str, Any], ...] | None = None
    """As in a manifest: resources and verbs."""

    def may(self, verb: str, resource: str) -> bool:
        return self.rules is None or any(
            verb in rule["verbs"] and resource in rule["resources"] for rule in self.rules
        )


@dataclass
class Log:
    """What a container has written, line by line with the time."""

    lines: list[tuple[datetime, bytes]] = field(default_factory=list)

    def add(self, line: bytes) -> None:
        self.lines.append((datetime.now(UTC), line))


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

    def __init__(self, objects: Objects, workers: Any, users: Mapping[str, User]) -> None:
        self.objects = objects
        self.workers = workers
        """The kubelets: `accept` a pod that was made, `end` one that is to be deleted, and return the `log`
        of one."""
        self.users = dict(users)
        """By token."""
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """How often which user asked for which verb and resource, refused requests included."""
        self.forbidden: list[str] = []
        """What was refused since a Role does not allow it."""
        self.port = 0
        self._runner = web.ServerRunner(
            web.Server(self._answer, handler_cancellation=True), shutdown_timeout=0.0
        )

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
            about = {"code": error.code, "reason": error.reason, "message": str(error), "metadata": {}}
            return web.json_response(
                {"kind": "Status", "apiVersion": "v1", "status": "Failure", **about}, status=error.code
            )

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:  # noqa: PLR0912  (a table of verbs)
        # 1. Who asks for what: /api/v1/namespaces/NAMESPACE/RESOURCE/NAME/PART, /api/v1/RESOURCE/NAME,
        #    /apis/GROUP/v1/...
        path = request.path.strip("/").split("/")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        user = self.users.get(token)
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if path == ["version"]:
            minor = KUBERNETES_VERSION.partition(".")[2]
            unsaid = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform")
            return web.json_response(
                {"major": "1", "minor": minor, "gitVersion": "v1.37.0", **dict.fromkeys(unsaid, "")}
            )
        path = path[2:] if path[0] == "api" else path[3:]
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
            return web.json_response(self._review(user, await request.json()), status=201)
        if not user.may(verb, asked):
            refused = f'{resource} "{name}" is forbidden: User "{user.name}" cannot {verb} resource "{asked}"'
            self.forbidden.append(refused)
            raise ApiError(403, "Forbidden", refused)

        # 3. The answer.
        query = request.query
        if verb == "list":
            return self._list(resource, namespace, selector(query))
        if verb == "create" and not name:
            new = await request.json()
            return web.json_response(
                self._create(resource, namespace, new, is_dry_run=query.get("dryRun") == "All"), status=201
            )
        if verb in ("get", "patch", "delete") and name:
            found = self.objects.get(resource, namespace, name)
            if (verb, asked) == ("get", "pods/log"):
                return self._log(query, found)
            if part and part != "status":
                raise ApiError(404, "NotFound", f"the cluster of the tests has no {asked}")
            if verb == "patch":  # Airflow patches nothing but labels
                found["metadata"]["labels"].update((await request.json())["metadata"]["labels"])
            if verb == "delete":
                body = await request.json() if request.body_exists else {}
                self._delete_pod(found, {**query, **(body or {})}.get("gracePeriodSeconds"))
            return web.json_response(found)
        raise ApiError(405, "MethodNotAllowed", f"the cluster of the tests cannot {verb} {asked}")

    # The verbs

    def _list(self, resource: str, namespace: str, selects: Callable[[Json], bool]) -> web.Response:
        items = [found for found in self.objects.list(resource, namespace) if selects(found)]
        return web.json_response(
            {"kind": f"{KINDS[resource]}List", "apiVersion": "v1", "metadata": {}, "items": items}
        )

    def _create(self, resource: str, namespace: str, new: Json, *, is_dry_run: bool) -> Json:
        new.setdefault("metadata", {})["namespace"] = namespace
        if resource == "pods":
            self._admit_pod(new)
        if is_dry_run:
            return new
        self.objects.add(resource, new)
        if resource == "pods":
            self.workers.accept(new)
        return new

    def _admit_pod(self, pod: Json) -> None:
        """Refuse what Kubernetes refuses, and fill in its defaults."""
        pod |= {"kind": "Pod", "apiVersion": "v1"}
        if refused := refusal(pod):
            code, message = refused
            raise ApiError(code, {400: "BadRequest", 403: "Forbidden", 422: "Invalid"}[code], message)
        defaults = {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "serviceAccountName": "default",
        }
        spec = defaults | pod["spec"]
        self.objects.get("serviceaccounts", pod["metadata"]["namespace"], spec["serviceAccountName"])
        pod |= {"spec": spec, "status": {"phase": "Pending", "qosClass": "Burstable"}}

    def _delete_pod(self, found: Json, asked: float | None) -> None:
        """Mark the pod as deleted, and have its kubelet end it within its own grace period or this one."""
        metadata = found["metadata"]
        grace = int(found["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)
        if grace < metadata.get("deletionGracePeriodSeconds", math.inf):  # a second request may only shorten
            metadata["deletionTimestamp"] = now(plus_seconds=grace)  # by when it is to be gone
            metadata["deletionGracePeriodSeconds"] = grace
        self.workers.end(found, metadata["deletionGracePeriodSeconds"])

    def _log(self, query: Mapping[str, str], pod: Json) -> web.Response:
        """What the container has written until now: nobody here follows a log."""
        lines = self.workers.log(pod).lines[-int(query.get("tailLines", 0)) :]
        has_time = query.get("timestamps") in ("true", "True")
        stamps = [f"{time:%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() if has_time else b"" for time, _ in lines]
        text = b"".join(stamp + line + b"\n" for stamp, (_, line) in zip(stamps, lines, strict=True))
        return web.Response(body=text, content_type="text/plain")

    def _review(self, user: User, review: Json) -> Json:
        """Whether the user may do what the review describes."""
        asked = review["spec"]["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        return {**review, "status": {"allowed": user.may(asked["verb"], resource)}}


def selector(query: Mapping[str, str]) -> Callable[[Json], bool]:
    """Whether an object has the labels and fields that the query asks for: `a=b`, `a!=b`, `a` and `!a`, but no sets."""
    labels, fields = (
        [term.strip() for term in query.get(name, "").split(",") if term.strip()]
        for name in ("labelSelector", "fieldSelector")
    )

    def has(found: Callable[[str], Any], term: str) -> bool:
        if compared := re.fullmatch(r"([^!=]+)(==|=|!=)(.*)", term):
            return (found(compared[1]) == compared[3]) is (compared[2] != "!=")
        return found(term[1:]) is None if term.startswith("!") else found(term) is not None

    def at(found: Any, path: str) -> Any:
        for name in path.split("."):
            found = (found or {}).get(name)
        return found

    return lambda found: (
        all(has((found["metadata"].get("labels") or {}).get, term) for term in labels)
        and all(has(partial(at, found), term) for term in fields)
    )
