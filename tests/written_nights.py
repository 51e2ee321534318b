"""Nights in Postgres without any stage: versions of a corpus, and runs whose rows follow from hashes.

What a stage would write for a text is a function of the text, of the recipe, and of the url for a tool that
reads the record: two runs over the same text agree. The release is chosen here a second time, in Python.
"""

import hashlib
import json
import math
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Engine, text

from tests.annotated_runs import STAGES, register_pool, register_run, register_tool
from toolformer_ops.records import content_uuid, document_id_of
from toolformer_ops.storage.postgres import database, queries

URI = "s3://toolformer/corpora/nights"
CORPUS_ID = hashlib.sha256(URI.encode()).hexdigest()[:16]
DECISIONS = "filter_recipe_id document_id paragraph start_char end_char kept reason"
CANDIDATES = """sampling_recipe_id call_id document_id paragraph position_token position_char position_probability
    call_input call_text input_key effective_input sample_count input_only_after"""
LOSSES = """scoring_recipe_id call_id document_id result_rank result reason
    loss_without_call loss_without_result loss_with_result probability_without probability_with"""
RELEASED_CALLS_WERE_CHOSEN = """insert into release_choices (release_id, document_id, call_id)
    select release_id, document_id, call_id from release_calls"""
MEANS = """insert into call_information
    select placebo_recipe_id, document_id, call_id, avg(reduction order by number), avg(information order by number), count(*),
           max(probability_with) filter (where number = 1)
    from placebo_losses
    where placebo_recipe_id = :recipe
    group by placebo_recipe_id, document_id, call_id
    on conflict do nothing"""
PLACEBOS = """placebo_recipe_id document_id call_id number source is_sampled loss_with_result
    reduction_bound information probability_with gain"""


@dataclass(frozen=True)
class Record:
    text: str
    url: str | None = None
    record_id: str | None = None


@dataclass(frozen=True)
class Tool:
    """A tool of a run; each of the names is part of the recipe of its stage and of those after it."""

    name: str
    threshold: float = 1.0
    reads_record: bool = False
    model: str = "m@1"
    index: str = "index-1"
    context: str = "all"
    keep_rule: str = "paper"
    placebos: bool = False
    last_document: str | None = None
    """The id up to which it has texts; None: all."""

    def recipes(self) -> dict[str, dict[str, Any]]:
        """The definitions by stage, each with its id and its parent's id."""
        found: dict[str, dict[str, Any]] = {}
        parent = None
        by_rule = {} if self.keep_rule == "paper" else {"keep_rule": self.keep_rule}
        for stage, definition in zip(
            STAGES,
            ({}, {"model": self.model}, {"tool_version": self.index}, {"context": self.context, **by_rule}),
            strict=True,
        ):
            content = {"stage": stage, "tool": self.name, "parent": parent, **definition}
            recipe_id = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
            found[stage] = {"recipe_id": recipe_id, "parent": parent, "definition": definition}
            parent = recipe_id
        return found

    @property
    def placebo_recipe(self) -> str:
        """The id of the recipe of its placebos."""
        return hashlib.sha256(f"placebos of {self.recipes()['score']['recipe_id']}".encode()).hexdigest()[:16]


def _all(connection: Connection, statement: str, **parameters: object) -> list[Any]:
    return list(connection.execute(text(statement), parameters))


def draw(*parts: object) -> random.Random:
    """Numbers that follow from the parts."""
    return random.Random("/".join(map(str, parts)))  # noqa: S311 - no secret


@dataclass
class Nights:
    """A database in which night follows night."""

    engine: Engine
    version: int = 0
    members: dict[uuid.UUID, tuple[Record, int]] = field(default_factory=dict)
    """The newest version: record and ordinal by document."""
    started: int = 0

    def ingest(self, *records: Record) -> int:
        """Make a version that holds these records; of equal texts the first counts."""
        self.version += 1
        now: dict[uuid.UUID, Record] = {}
        for record in records:
            now.setdefault(document_id_of(record.text), record)
        with database.transaction(self.engine) as connection:
            if self.version == 1:
                database.copy_insert(connection, "corpora", ("corpus_id", "uri"), [(CORPUS_ID, URI)])
            next_ordinal = _all(connection, "select coalesce(max(ordinal) + 1, 0) from corpus_documents")[0][
                0
            ]
            ended = [key for key, (old, _) in self.members.items() if now.get(key) != old]
            connection.execute(
                text("update corpus_documents set left_version = :version "
                     "where left_version is null and document_id = any(cast(:ids as uuid[]))"),
                {"version": self.version, "ids": [str(key) for key in ended]},
            )  # fmt: skip
            members = {key: value for key, value in self.members.items() if key not in ended}
            rows = []
            for key, record in now.items():
                if key in members:
                    continue
                if key in self.members:
                    ordinal = self.members[key][1]
                else:
                    ordinal, next_ordinal = next_ordinal, next_ordinal + 1
                members[key] = record, ordinal
                variant = self._variant(connection, key, record)
                rows.append((CORPUS_ID, key, variant, ordinal, "f", self.version, record.record_id))
            columns = (
                "corpus_id",
                "document_id",
                "variant_id",
                "ordinal",
                "file_uri",
                "first_version",
                "record_id",
            )
            database.copy_insert(connection, "corpus_documents", columns, rows)
            self.members = members
        return self.version

    def _variant(self, connection: Connection, key: uuid.UUID, record: Record) -> uuid.UUID | None:
        database.copy_insert(
            connection, "documents", ("document_id", "text", "url"), [(key, record.text, record.url)]
        )
        if _all(connection, "select url from documents where document_id = :key", key=key) == [(record.url,)]:
            return None
        variant = content_uuid(str(key), str(record.url))
        columns = ("document_id", "text", "url", "variant_of")
        database.copy_insert(connection, "documents", columns, [(variant, record.text, record.url, key)])
        return variant

    def start(
        self,
        run_id: str,
        *tools: Tool,
        schedule: str | None = "nightly",
        limit: int | None = None,
        **parameters: Any,
    ) -> None:
        """Register a run at the newest version."""
        self.started += 1
        with database.transaction(self.engine) as connection:
            register_run(
                connection, run_id, CORPUS_ID, URI, [tool.name for tool in tools], json.dumps(parameters),
                model_identity=tools[0].model, limit=limit, version=self.version, schedule=schedule,
            )  # fmt: skip
            started = "now() + :night * interval '1 minute' - interval '1 day' where run_id = :run_id"
            at = {"night": self.started, "run_id": run_id}
            connection.execute(text(f"update annotation_runs set started_at = {started}"), at)
            for tool in tools:
                recipes = tool.recipes()
                for stage, recipe in recipes.items():
                    database.execute(
                        connection, queries.runs.insert_recipe, recipe_id=recipe["recipe_id"], stage=stage, tool=tool.name,
                        parent_recipe_id=recipe["parent"], definition=json.dumps(recipe["definition"]),
                    )  # fmt: skip
                register_tool(
                    connection, run_id, tool.name, {stage: recipe["recipe_id"] for stage, recipe in recipes.items()},
                    tool_version=tool.index, keep_threshold=tool.threshold, prune_below=0.0,
                    reads_record=tool.reads_record, keep_rule=tool.keep_rule,
                )  # fmt: skip
                bound = (
                    "update run_tools set last_document_id = :last where run_id = :run_id and tool = :tool"
                )
                connection.execute(
                    text(bound), {"last": tool.last_document, "run_id": run_id, "tool": tool.name}
                )
                if tool.placebos:
                    scoring = recipes["score"]["recipe_id"]
                    register_pool(connection, run_id, tool.name, CORPUS_ID, tool.placebo_recipe, scoring)

    def work(self, run_id: str, *tools: Tool, share: float = 1.0, killed: float = 0.0) -> None:
        """Do what is undone of a run, or only for a share of its documents; a share of them kills its process at the sampling."""
        with database.transaction(self.engine) as connection:
            for tool in tools:
                members = (
                    "select member.variant_id, d.text, d.url from run_tool_documents member "
                    "join documents d on d.document_id = member.variant_id "
                    "where member.run_id = :run_id and member.tool = :tool order by member.ordinal"
                )
                rows = _all(connection, members, run_id=run_id, tool=tool.name)
                chosen = [row for row in rows if draw("share", run_id, tool.name, row.text).random() < share]
                self._annotate(connection, run_id, tool, chosen, killed)

    def _annotate(
        self, connection: Connection, run_id: str, tool: Tool, rows: list[Any], killed: float
    ) -> None:
        ids = {stage: recipe["recipe_id"] for stage, recipe in tool.recipes().items()}
        if tool.placebos:
            ids["placebo"] = tool.placebo_recipe
        done = "select document_id, counts ? 'process_killed' as is_killed from stage_ledger where recipe_id = :recipe"
        sampled = {row.document_id: row.is_killed for row in _all(connection, done, recipe=ids["sample"])}
        ledger: dict[str, list[tuple[Any, ...]]] = {stage: [] for stage in ids}
        decisions, candidates, losses, placebos = [], [], [], []
        for row in rows:
            seen = (row.text, row.url if tool.reads_record else None)
            kept = draw("filter", tool.name, *seen).random() < 0.75
            reason = "kept" if kept else draw("why", *seen).choice(["too_short", "no_number"])
            decisions.append((ids["filter"], row.variant_id, 0, 0, len(row.text), kept, reason))
            ledger["filter"].append((row.variant_id, 1, {"paragraphs": 1, reason: 1}))
            if not kept:
                continue
            if sampled.get(row.variant_id, draw("killed", run_id, tool.name, *seen).random() < killed):
                failed = (ids["sample"], row.variant_id, "sample", tool.name, "process_killed", 3, run_id)
                columns = ("recipe_id", "document_id", "stage", "tool", "reason", "deaths", "run_id")
                database.copy_insert(connection, "failed_documents", columns, [failed])
                ledger["sample"].append((row.variant_id, 0, {"paragraphs": 1, "process_killed": 1}))
                for stage in list(ids)[2:]:
                    ledger[stage].append((row.variant_id, 0, {}))
                continue
            number = draw("calls", ids["sample"], *seen).randrange(4)
            reasons: Counter[str] = Counter()
            for place in range(number):
                inputs = draw("input", tool.model, tool.name, row.text, place).randrange(5)
                position = 3 * draw("position", tool.model, row.text, place).randrange(3)
                call_text = f"{tool.name}({inputs})"
                call_id = content_uuid(
                    ids["sample"], str(row.variant_id), str(position), call_text, str(place)
                )
                only_after = draw("after", row.text, inputs).random() < 0.1
                candidates.append(
                    (ids["sample"], call_id, row.variant_id, 0, position, position, 0.5, str(inputs), call_text, call_id,
                     str(inputs), 1, only_after)
                )  # fmt: skip
                result = draw("result", tool.name, tool.index, inputs, seen[1]).randrange(3)
                if result == 0:
                    reasons["no_result"] += 1
                    losses.append(
                        (ids["score"], call_id, row.variant_id, None, None, "no_result", *[None] * 5)
                    )
                    continue
                reasons["scored"] += 1
                saves = draw("saves", tool.context, tool.model, row.text, position, call_text, result).choice(
                    [0.0, 0.5, 0.75, 1.0, 1.25, 2.5]
                )
                of_rule = (None, None) if tool.keep_rule == "paper" else (0.05, 0.05 * math.exp(saves))
                losses.append(
                    (
                        ids["score"],
                        call_id,
                        row.variant_id,
                        0,
                        str(result),
                        None,
                        3.0,
                        3.5,
                        3.0 - saves,
                        *of_rule,
                    )
                )
                chance = draw("placebos", ids["score"], row.text, position, call_text, result)
                for n in (1, 2) if tool.placebos else ():
                    reduction, information = (
                        chance.choice([-0.5, 0.5, 0.75, 1.25]),
                        chance.choice([0.0, 0.2, 0.4]),
                    )
                    placebos.append(
                        (ids["placebo"], row.variant_id, call_id, n, n, n == 1, 3.0 - reduction, reduction, information,
                         None if tool.keep_rule == "paper" else chance.choice([0.02, 0.06]),
                         reduction if n == 1 else None)
                    )  # fmt: skip
            ledger["sample"].append(
                (row.variant_id, number, {"paragraphs": 1, "positions": number, "candidates": number})
            )
            ledger["execute"].append((row.variant_id, number, {"calls": number}))
            ledger["score"].append((row.variant_id, number, {"calls": number, **reasons}))
            if tool.placebos:
                ledger["placebo"].append((row.variant_id, reasons["scored"], {"placebos": reasons["scored"]}))
        for table, columns, written in (
            ("filter_decisions", DECISIONS, decisions),
            ("candidate_calls", CANDIDATES, candidates),
            ("call_losses", LOSSES, losses),
            ("placebo_losses", PLACEBOS, placebos),
        ):
            database.copy_insert(connection, table, columns.split(), written)
        connection.execute(text(MEANS), {"recipe": ids.get("placebo")})
        for stage, done in ledger.items():
            in_ledger = "select document_id from stage_ledger where recipe_id = :recipe and stage = :stage"
            known = {key for [key] in _all(connection, in_ledger, recipe=ids[stage], stage=stage)}
            new = [item for item in done if item[0] not in known]
            if not new:
                continue
            batch_columns = "run_id, tool, stage, recipe_id, documents, rows_written, seconds"
            of_batch = {"run_id": run_id, "tool": tool.name, "stage": stage, "recipe_id": ids[stage]}
            of_batch |= {
                "documents": len(new),
                "rows_written": sum(item[1] for item in new),
                "seconds": 0.5 * len(new),
            }
            values = ":" + batch_columns.replace(", ", ", :")
            insert = f"insert into micro_batches ({batch_columns}) values ({values}) returning batch_id"
            [[batch]] = _all(connection, insert, **of_batch)
            columns = ("stage", "recipe_id", "document_id", "rows_written", "counts", "seconds", "batch_id")
            rows = [
                (stage, ids[stage], key, written, json.dumps(counts), 0.5, batch)
                for key, written, counts in new
            ]
            database.copy_insert(connection, "stage_ledger", columns, rows)

    def release(
        self, run_id: str, *, lacking: tuple[str, ...] = (), max_examples: int | None = None
    ) -> str | None:
        """Choose among the kept calls as the release does, and register it; None where there is nothing."""
        with database.transaction(self.engine) as connection:
            releasable = (
                "select run_id, tool, document_uuid as document_id, call_uuid as call_id, position_char, gain, "
                "scoring_recipe_id from kept_calls where run_id = :run_id and releasable"
            )
            kept = [row for row in _all(connection, releasable, run_id=run_id) if row.tool not in lacking]
            best: dict[tuple[uuid.UUID, int], Any] = {}
            for row in sorted(kept, key=lambda row: (-row.gain, row.call_id)):
                best.setdefault((row.document_id, row.position_char), row)
            texts: dict[str, list[uuid.UUID]] = {}
            chosen, choices = [], []
            for row in sorted(best.values(), key=lambda row: (row.document_id, row.position_char)):
                of_tool = texts.setdefault(row.tool, [])
                if row.document_id not in of_tool:
                    of_tool.append(row.document_id)
                if max_examples is None or of_tool.index(row.document_id) < max_examples:
                    chosen.append(row)
                else:
                    choices.append((row.document_id, row.call_id, "above_max_examples"))
            if not chosen:
                return None
            content = [str(row.call_id) + row.scoring_recipe_id for row in chosen]
            release_id = hashlib.sha256(" ".join([*content, *lacking]).encode()).hexdigest()[:16]
            database.execute(
                connection, queries.releases.register, release_id=release_id, run_id=run_id, uri=f"s3://b/{release_id}",
                manifest_sha256="0" * 64, documents=len({row.document_id for row in chosen}), calls=len(chosen),
                lacking_tools=list(lacking), definition=None, rates=None,
            )  # fmt: skip
            rows = [
                (release_id, row.document_id, row.call_id, row.scoring_recipe_id, row.tool) for row in chosen
            ]
            columns = ("release_id", "document_id", "call_id", "scoring_recipe_id", "tool")
            database.copy_insert(connection, "release_calls", columns, rows)
            choices += [(row.document_id, row.call_id, None) for row in chosen]
            choices += [
                (row.document_id, row.call_id, "better_call_at_position")
                for row in kept
                if row is not best[row.document_id, row.position_char]
            ]
            columns = ("release_id", "document_id", "call_id", "left_out")
            database.copy_insert(
                connection, "release_choices", columns, [(release_id, *choice) for choice in choices]
            )
            database.execute(
                connection, queries.releases.set_of_run, run_id=run_id, release_id=release_id, left_out={}
            )
            return release_id

    def finish(self, run_id: str, state: str = "success", problem: str = "") -> None:
        with database.transaction(self.engine) as connection:
            database.execute(connection, queries.runs.finish, run_id=run_id, state=state, problem=problem)

    def change(self, drawn: random.Random, number: int, records: list[Record]) -> list[Record]:
        """Records of the next version: some texts changed, some urls corrected, some gone, some new, and some that return."""
        left = [
            replace(record, text=record.text + "!") if drawn.random() < 0.1
            else replace(record, url=f"{record.url}/{number}") if drawn.random() < 0.1
            else record
            for record in records
            if drawn.random() < 0.9
        ]  # fmt: skip
        returning = [record for record in records if record not in left and drawn.random() < 0.3]
        return left + [Record(f"night {number} text {n}") for n in range(drawn.randrange(6))] + returning
