"""Schedule files: one TOML file describes the nightly runs over one corpus, and becomes one DAG, `nightly_<name of the file>`.

Reads and checks the files; knows nothing of Airflow. The parameters of a run are those of the trigger form,
checked by the same model (`runs/choices.py`). `nightly_dag.py` makes the DAGs, `bundles/schedule_bundle.py`
shows the files to Airflow; docs/nightly.md is the guide.
"""

import datetime
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from toolformer_ops.airflow_tasks.nights.cron import next_starts, require_cron, require_time_zone, surprises
from toolformer_ops.airflow_tasks.run_ids import NIGHTLY
from toolformer_ops.errors import ConfigurationError, ToolError, UsageError, did_you_mean, expectation
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage.corpora.local_paths import read_beside
from toolformer_ops.tools.registry import DEFAULT_TOOLS, get_tool, tool_names

ASSET_NAMES = ("wiki_index",)
"""Assets that a schedule names by a word; all others are named by their URI."""
OF_THE_FILE = ("corpus", "model")
"""Choices of a run that are keys of the file itself; the others are in its section `run`."""


def _text(pattern: str, expected: str) -> AfterValidator:
    """Text of this pattern; the message says what is `expected`."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


Name = Annotated[str, Field(min_length=1, max_length=200)]
FileName = Annotated[
    str,
    _text(
        r"[a-z0-9][a-z0-9_-]{0,99}",
        "a file called by small letters, digits, - and _, such as posts.toml: the DAG has its name",
    ),
]
ConnectionId = Annotated[
    str, _text(r"[A-Za-z0-9_.-]{1,200}", "the id of a Connection in Airflow, such as smtp_default")
]
Email = Annotated[str, _text(r"(?=.{3,254}$)[^@\s,;]+@[^@\s,;]+", "an address, such as ann@example.org")]


class Section(BaseModel):
    """A table of a schedule file: unknown keys are refused, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Finetuning(Section):
    """When a model is trained on the release of a night."""

    min_changed_examples: int = Field(
        default=1,
        ge=0,
        description="Finetune and evaluate if so many examples differ from the release that was last finetuned on; 0 is always.",
    )


class Notification(Section):
    """Who is told how a night went.

    Passwords and secret addresses are in Airflow's Connections, not in the file.
    """

    emails: tuple[Email, ...] = Field(default=(), description="Addresses that get a mail.")
    smtp: ConnectionId = Field(default="smtp_default", description="Connection of the mail server.")
    webhooks: tuple[ConnectionId, ...] = Field(
        default=(),
        description='Connections of webhooks that get {"text": ...}: Slack, Mattermost, Teams, your own.',
    )
    every_morning: bool = Field(
        default=False, description="Send the summary of each night; else only what went wrong is told."
    )


class Schedule(Section):
    """One schedule file."""

    name: FileName = Field(description="Name of the file without .toml.")
    corpus: str = Field(
        description="An s3:// or file:// address, or an absolute path, of a file or a folder."
    )
    model: str = Field(
        description="A folder with safetensors, s3://bucket/models/NAME, or a hub id with its commit as id@revision."
    )
    cron: str | None = Field(
        default=None, description="When, as minute, hour, day of month, month, day of week."
    )
    time_zone: str = Field(default="UTC", description="Time zone of `cron`, such as Europe/Berlin.")
    after: tuple[str, ...] = Field(
        default=(),
        description="Assets: a new version of any of them starts a run. wiki_index, or the URI of an asset.",
    )
    owner: Name = Field(default="toolformer", description="Who looks after it: the owner that Airflow shows.")
    hours: float = Field(
        default=24.0,
        gt=0,
        le=168,
        description="Time limit of a night, in hours, without the time for an answer that approve asks for.",
    )
    accept_shrink: bool = Field(
        default=False,
        description="Take over a file that breaks off or holds too much, and a corpus that shrank by more than half.",
    )
    run: RunChoices
    finetune: Finetuning = Finetuning()
    notify: Notification = Notification()

    @property
    def dag_id(self) -> str:
        """The id of its DAG."""
        return f"{NIGHTLY}{self.name}"

    def starts_after(self, moment: datetime.datetime) -> str:
        """Return a sentence: the five times after `moment` at which `cron` starts a run, and what may surprise about them."""
        if self.cron is None:
            return f"no clock starts it: it waits for {' or '.join(self.after)}"
        starts = next_starts(self.cron, self.time_zone, moment)
        times = ", ".join(f"{start:%a %Y-%m-%d %H:%M}" for start in starts)
        return "; ".join([f"{times} ({self.time_zone})", *surprises(self.cron)])

    @field_validator("corpus")
    @classmethod
    def _corpus_is_absolute(cls, corpus: str) -> str:
        if not corpus.startswith(("s3://", "file:///", "/")):
            raise ValueError("expected an s3:// or file:/// address or an absolute path")
        return corpus

    @field_validator("cron")
    @classmethod
    def _cron_fires(cls, cron: str | None) -> str | None:
        if cron is not None:
            require_cron(cron)
        return cron

    @field_validator("time_zone")
    @classmethod
    def _time_zone_is_known(cls, time_zone: str) -> str:
        require_time_zone(time_zone)
        return time_zone

    @field_validator("after")
    @classmethod
    def _assets_can_be_found(cls, after: tuple[str, ...]) -> tuple[str, ...]:
        for asset in after:
            if asset not in ASSET_NAMES and "://" not in asset:
                raise ValueError(
                    f"expected {', '.join(ASSET_NAMES)} or the URI of an asset, such as s3://models/base"
                )
        return after

    @field_validator("run")
    @classmethod
    def _tools_and_thresholds_fit(cls, run: RunChoices) -> RunChoices:
        if not set(run.tools) <= set(tool_names()):
            return run  # of an older version of the DAG, which had this tool: its stages say that it is gone
        try:
            run.kept_from()
        except UsageError as error:
            raise ValueError(str(error).rstrip(".")) from error
        return run

    @model_validator(mode="after")
    def _something_starts_it(self) -> Self:
        if self.cron is None and not self.after:
            raise ValueError("expected cron, after, or both: nothing would start a run")
        return self


def load_schedule(path: Path, content: bytes | None = None, tools: Collection[str] = ()) -> Schedule:
    """The schedule in a file, or the schedule that it held when it had this content, and there were these tools.

    Raises:
        ConfigurationError: names the file, each wrong key, what was found, and the remedy.
    """
    try:
        values = tomllib.loads((read_beside(path.parent, path.name) if content is None else content).decode())
    except (UsageError, OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: expected a schedule in TOML, found: {error}. {_REMEDY}") from error
    problems = []
    run = values.get("run", {})
    if "name" in values:
        problems.append("name: unknown key; the name of a schedule is that of its file")
    if isinstance(run, dict):
        misplaced = [key for key in OF_THE_FILE if key in run]
        problems += [
            f"run.{key}: belongs at the top of the file, before the first section" for key in misplaced
        ]
        run = {**run, **{key: values[key] for key in OF_THE_FILE if key in values}}
        # What is wrong with a tool is told beside the other mistakes, so the others are looked for among the
        # tools that there are.
        if unknown := _unknown_tools(run.get("tools"), tools):
            problems += [f"run.tools: {problem}" for problem in unknown.values()]
            run["tools"] = [name for name in run["tools"] if name not in unknown] or list(DEFAULT_TOOLS)
    try:
        schedule = Schedule.model_validate({**values, "run": run, "name": path.stem})
    except ValidationError as error:
        problems += _problems(error)
    if problems:
        raise ConfigurationError(
            f"{path}: expected a schedule, found {len(problems)} mistake{'s' if len(problems) > 1 else ''}: "
            f"{'; '.join(problems)}. {_REMEDY}"
        )
    return schedule


def _unknown_tools(names: object, tools: Collection[str]) -> dict[str, str]:
    """By each of the names that is no tool's, of these neither, why."""
    problems = {}
    for name in names if isinstance(names, list) else ():
        if not isinstance(name, str) or name in tools:
            continue
        try:
            get_tool(name)
        except ToolError as error:
            problems[name] = str(error).rstrip(".")
    return problems


def schedule_files(folder: Path | None) -> list[Path]:
    """The schedule files of a folder, in the order of their names; none if there is no folder."""
    if folder is None or not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("*.toml") if path.is_file())


_REMEDY = "Correct the file: Airflow reads it again within a minute. docs/keys.md lists the keys. Other schedules run."
_KEYS: Mapping[str, Iterable[str]] = MappingProxyType(
    {
        "": [key for key in Schedule.model_fields if key != "name"],
        "run": [key for key in RunChoices.model_fields if key not in OF_THE_FILE],
        "finetune": list(Finetuning.model_fields),
        "notify": list(Notification.model_fields),
    }
)
"""The keys of each section; the first is the file's top."""


def _problems(error: ValidationError) -> list[str]:
    """One sentence a mistake: key, what is wrong, what was found.

    A choice that is the file's is told once.
    """
    problems: dict[str, str] = {}
    for item in error.errors():
        location = [str(part) for part in item["loc"]]
        if location[:1] == ["run"] and location[1:2] and location[1] in OF_THE_FILE:
            location = location[1:]
        key = ".".join(location)
        if item["type"] == "extra_forbidden":
            section, name = (location[0], location[-1]) if len(location) > 1 else ("", location[0])
            keys = list(_KEYS.get(section, ()))
            known_keys = f"known are {', '.join(keys)}"
            problem = f"unknown key; {did_you_mean(name, keys) or known_keys}"
        else:
            problem = expectation(item)
            names_a_value = item["type"] != "missing" and not isinstance(item["input"], (dict, BaseModel))
            if location and names_a_value:
                problem += f" (found {item['input']!r:.80})"
        problems.setdefault(key or "the file", problem)
    return [f"{key}: {problem}" for key, problem in problems.items()]
