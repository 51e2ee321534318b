"""A release as tasks for reinforcement learning.

A task is a released call: the text before it, the tools, and what calls save. The prompt of a task is that of
the chat export, ended at the call's place. `expected` is the released call with its result and the nats that
it saves; `rejected` are the other calls at this place, kept or not, with their results and what each saves.
So a reward needs no judge: `environment/call_tasks.py`, which is written beside the tasks with what TRL and
verifiers need, compares a model's call with these.

Rejected calls are in Postgres alone, so the release must be one of this database (`tried_calls.py`).
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import NoResultError
from toolformer_ops.release.card import markdown
from toolformer_ops.release.conversations import user_turn
from toolformer_ops.release.export_files import put_beside, require_place, write_rows
from toolformer_ops.release.opened_release import left_out_warning, opened_release, run_of_release
from toolformer_ops.release.tried_calls import TriedText, tried_texts
from toolformer_ops.storage.postgres import database
from toolformer_ops.tools.registry import get_tool

logger = logging.getLogger(__name__)

FILES = ("call_tasks.py", "for_trl.py", "for_verifiers.py")
"""Written beside the tasks, from the folder `environment`."""


@dataclass(frozen=True)
class EnvironmentExport:
    """What was written."""

    address: str
    """Address of the file: a path, or s3://."""
    tasks: int
    with_rejected: int
    """Tasks with at least one rejected call."""
    sha256: str
    """Hash of the file's content."""
    written: bool
    """False if the same content was there already."""
    warnings: tuple[str, ...] = ()


def call_of(call: Row[Any]) -> dict[str, Any]:
    """A call as a task has it. Arguments are JSON in a text, since tools have others each.

    Of a call that was not scored to the end only an upper bound is known: it has at most 0.
    """
    return {
        "tool": call.tool,
        "input": call.call_input,
        "arguments": json.dumps(get_tool(call.tool).arguments(call.call_input), ensure_ascii=False),
        "result": call.result,
        "nats": min(0.0, call.bound) if call.outcome == "pruned" else call.bound,
    }


def tasks_of_text(tried: TriedText, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tasks of one text, by place: one for each released call."""
    plain, _ = tried.text.all_calls()
    tasks = []
    for call in tried.released:
        others = (*tried.rejected, *tried.only_kept)
        at_place = [other for other in others if other.position_char == call.position_char]
        tasks.append(
            {
                "prompt": [user_turn(plain[: call.position_char])],
                "tools": list(tools),
                "expected": call_of(call),
                "rejected": [call_of(other) for other in at_place],
                "document_id": str(tried.text.document_id),
                "call_id": call.call_id,
            }
        )
    return tasks


def export_environment(settings: Settings, release: str, out: str, model: str = "") -> EnvironmentExport:
    """Write the tasks of the release at `release` (s3://) to `out`, and their card.

    `out` is a .jsonl file or a folder, local or s3://. In a folder the files for TRL and verifiers are beside
    them.

    Raises:
        NoResultError: there is no task.
        UsageError, ModelError, ToolError, ConfigurationError, ObjectStoreError: as `export_chat`.
    """
    require_place(out)
    counts: Counter[str] = Counter()
    with (
        opened_release(settings, release, model) as opened,
        database.transaction(database.connect(settings)) as connection,
    ):
        release_id, run_id = run_of_release(connection, release)

        def rows() -> Iterator[dict[str, Any]]:
            for tried in tried_texts(connection, opened.folder, run_id):
                if opened.control_tokens.search(tried.text.text) is not None:
                    counts["control_tokens"] += 1
                    continue
                for task in tasks_of_text(tried, opened.tools):
                    counts.update(tasks=1, with_rejected=bool(task["rejected"]))
                    yield task

        def card() -> str:
            if not counts["tasks"]:
                raise NoResultError(
                    "expected at least one task, found none: the release has no call in a text without "
                    "control tokens. Nothing was written."
                )
            template = Path(__file__).with_name("environment_card.md.jinja")
            return markdown(template, release_id=release_id, run_id=run_id, counts=counts)

        address, sha256, written = write_rows(settings, out, rows(), card)
    if not out.endswith(".jsonl"):
        for name in FILES:
            put_beside(settings, Path(__file__).with_name("environment") / name, out)
    warnings = opened.warnings
    if counts["control_tokens"]:
        warnings = (*warnings, left_out_warning(counts["control_tokens"]))
        logger.warning("%s", warnings[-1])
    logger.info("%s %d tasks: %s", "wrote" if written else "found the same", counts["tasks"], address)
    return EnvironmentExport(
        address=address,
        tasks=counts["tasks"],
        with_rejected=counts["with_rejected"],
        sha256=sha256,
        written=written,
        warnings=warnings,
    )
