"""The TOML file of a proposer behind an endpoint (docs/proposers.md).

It says where the server is, which model it is asked for, and how. It is `NAME.proposer.toml` in the folder of
the tool files, and a run names it as `endpoint:NAME`. So who starts a run chooses among the servers that the
administrator has named, and sends texts and secrets nowhere else.
"""

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from toolformer_ops.config import Settings, is_of_deployment
from toolformer_ops.errors import ConfigurationError, UsageError, expectation
from toolformer_ops.storage.corpora.local_paths import read_beside

PREFIX = "endpoint:"
"""How a run names a proposer."""
SUFFIX = ".proposer.toml"
VERSION = 2
"""Raised when the code would send other requests, or read other calls from the same answers."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_URL = re.compile(r"https?://[^/\s?#@]+(/[^\s?#@]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Endpoint(BaseModel):
    """What the file says; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    url: str
    """The address up to the version, usually `.../v1`; without user and password."""
    model: str = Field(min_length=1, max_length=300)
    """The model, as the server calls it."""
    answers_as: str = Field(default="", max_length=300)
    """The model's name in answers, if it differs. On Azure `model` is the deployment and this is
    `gpt-...`."""
    licence: str = Field(min_length=1, max_length=300)
    """The licence of the model's answers, for the release's card. Some services forbid training other models
    on answers."""
    api: Literal["completions", "chat"] = "completions"
    """completions: the model continues the tool's prompt at a position; chat: it answers the prompt with the
    text and calls in it."""
    key: str = ""
    """Name of the variable with the key, which is sent as a bearer token; empty: none is sent."""
    concurrency: int = Field(default=8, ge=1, le=256)
    """Requests at once, for each process; a run has as many processes as `gpu` slots."""
    seconds: float = Field(default=120.0, gt=0, le=3600, strict=False)
    """Longest wait for one answer."""
    answers_per_request: int = Field(default=1, ge=1, le=100)
    """Samples of one request (`n`). vLLM and SGLang then read the prompt once for all."""
    extra: dict[str, Any] = {}
    """Further fields of each request. An empty text leaves a field out: `seed = ""` for a server without
    seeds, `max_tokens = ""` with `max_completion_tokens = 4096` for models that think."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if not _URL.fullmatch(url):
            raise ValueError(
                "expected an address with http:// or https://, without user, password and question mark, "
                f"found {url!r}"
            )
        return url.rstrip("/")

    @field_validator("key")
    @classmethod
    def _is_of_the_endpoint(cls, key: str) -> str:
        if key and (not _VARIABLE.fullmatch(key) or is_of_deployment(key)):
            raise ValueError(
                f"expected the name of a variable that is not of this deployment itself, found {key!r}"
            )
        return key

    @property
    def identity(self) -> str:
        """What decides an answer, but for the request: the model's name and how it is asked.

        The address decides nothing.
        """
        deciding = self.model_dump(include={"model", "api", "answers_per_request", "extra"})
        content = json.dumps({"version": VERSION, **deciding}, sort_keys=True)
        return f"{PREFIX}{self.model}@{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def proposer_files(folder: Path) -> list[Path]:
    """The files of proposers in a folder, by name; none if there is no such folder."""
    return sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []


def read_endpoint(settings: Settings, proposer: str) -> Endpoint:
    """The endpoint that a run names as `endpoint:NAME`.

    Raises:
        ConfigurationError: there is no such file, or a key is unknown, missing or out of its bounds.
    """
    folder, name = settings.tools_folder, proposer.removeprefix(PREFIX)
    path = folder / f"{name}{SUFFIX}"
    names = [file.name.removesuffix(SUFFIX) for file in proposer_files(folder)]
    if not _NAME.fullmatch(name) or name not in names:
        raise ConfigurationError(
            f"proposer: expected a file {name}{SUFFIX} in {folder}, found "
            f"{', '.join(names) or 'no such file'}. Write it (docs/proposers.md), or name a file that exists."
        )
    try:
        return Endpoint.model_validate(tomllib.loads(read_beside(folder, path.name).decode()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"proposer file {path}: expected TOML in UTF-8, found {error}.") from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {expectation(item)}" for item in error.errors()
        )
        raise ConfigurationError(f"proposer file {path}: {wrong}. docs/keys.md lists the keys.") from error
    except UsageError as error:
        raise ConfigurationError(f"proposer file {path}: {error}") from error
