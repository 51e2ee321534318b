"""Airflow's REST API (v2), as far as `make up` needs it: health, and making pools. `demo/airflow_client.py` runs DAGs by it."""

from collections.abc import Mapping
from typing import Any

import httpx

from toolformer_ops.config import Settings
from toolformer_ops.errors import ServiceError

_UNAUTHORIZED = 401


class AirflowApi:
    """A session with the API at `settings.airflow_url`."""

    def __init__(self, settings: Settings, timeout_seconds: float = 30.0) -> None:
        """Connects at the first request only."""
        self._url = settings.airflow_url.rstrip("/")
        self._login = {"username": settings.airflow_username, "password": settings.airflow_password.get_secret_value()}
        self._client = httpx.Client(base_url=self._url, timeout=timeout_seconds)
        self._token = ""

    def health(self) -> dict[str, str]:
        """The state of each part of Airflow (`healthy`, `unhealthy`, ...), no login needed; empty while nobody answers."""
        try:
            answer = self._client.get("/api/v2/monitor/health", timeout=5.0)
            parts = answer.json() if answer.is_success else {}
        except (httpx.HTTPError, ValueError):
            return {}
        return {name: str((part or {}).get("status")) for name, part in parts.items()}

    def get(self, path: str, **query: object) -> Any:
        """The JSON of `GET /api/v2<path>`."""
        return self._request("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        """The JSON of `POST /api/v2<path>`."""
        return self._request("POST", path, json=dict(body))

    def patch(self, path: str, body: Mapping[str, object]) -> Any:
        """The JSON of `PATCH /api/v2<path>`."""
        return self._request("PATCH", path, json=dict(body))

    def _request(self, method: str, path: str, **content: Any) -> Any:
        try:
            answer = self._send(method, path, **content)
            if answer.status_code == _UNAUTHORIZED:
                self._token = ""
                answer = self._send(method, path, **content)
        except httpx.HTTPError as error:
            raise ServiceError(
                f"expected Airflow at {self._url}, found: {error}. Start it by `make up`, or set TOOLFORMER_AIRFLOW_URL."
            ) from error
        if not answer.is_success:
            raise ServiceError(f"Airflow refused {method} {path} with status {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        if not self._token:
            self._token = self._new_token()
        return self._client.request(
            method, f"/api/v2{path}", headers={"Authorization": f"Bearer {self._token}"}, **content
        )

    def _new_token(self) -> str:
        answer = self._client.post("/auth/token", json=self._login)
        if not answer.is_success:
            raise ServiceError(
                f"expected a login as {self._login['username']} at {self._url}, found status {answer.status_code}. Set "
                f"TOOLFORMER_AIRFLOW_USERNAME and TOOLFORMER_AIRFLOW_PASSWORD, or begin anew by `make up`."
            )
        return str(answer.json()["access_token"])
