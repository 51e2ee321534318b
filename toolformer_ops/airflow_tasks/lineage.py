"""What a stage reads and writes, as OpenLineage datasets: for the events that Airflow's OpenLineage provider sends.

The provider asks an operator for them when its task has ended
(`StageTask.get_openlineage_facets_on_complete`), and sends them if its settings say (docs/operations.md#lineage).
Without a transport it is off: it asks nothing, and imports nothing, neither when a DAG file is parsed nor
when a task runs.

    corpus address  s3://bucket prefix, or file path
    tables          postgres://host:port  database.schema.table
    release, model  s3://bucket           releases/ID, models/ID, each with its id as version

The table of the corpus has the version `corpus version N`.

Rows that a stage wrote are `outputStatistics`. A mapped task is one shard, and has no counts of rows: the
check, which runs after all shards, has the rows that the run wrote in each table as
`inputStatistics`, and what it found as `dataQualityAssertions`. A failed check is an event, too. Datasets
hold names, ids, counts and outcomes of checks; no text of a document, and no login: addresses are put
together from host, port and names. Postgres is asked once the stage has ended. If it does not answer, the
task does not fail: the provider logs that, and sends the event without datasets.
"""

import itertools
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    data_quality_assertions_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
)
from sqlalchemy import Connection, text

from toolformer_ops.config import Settings
from toolformer_ops.storage.corpora.addresses import CorpusAddress, corpus_id_of
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.queries import Statement

CORPUS_TABLE = "corpus_documents"
WRITTEN_BY = {
    "filter_decisions": "filter",
    "candidate_calls": "sample",
    "call_results": "execute",
    "call_losses": "score",
    "placebo_losses": "placebo",
}
"""By table of a tool's rows, the stage that writes them."""
READS_AND_WRITES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "filter": ((CORPUS_TABLE,), ("filter_decisions",)),
    "sample": ((CORPUS_TABLE, "filter_decisions"), ("candidate_calls",)),
    "execute": (("candidate_calls",), ("call_results",)),
    "score": (("candidate_calls", "call_results"), ("call_losses",)),
    "annotate": (
        (CORPUS_TABLE, "filter_decisions"),
        ("candidate_calls", "call_results", "call_losses", "placebo_losses"),
    ),
    "placebo": (("candidate_calls", "call_results", "call_losses"), ("placebo_losses",)),
    "release": ((CORPUS_TABLE, "candidate_calls", "call_results", "call_losses", "placebo_losses"), ()),
}
"""By stage, the tables that it always reads and writes."""


def lineage_of(settings: Settings, arguments: Sequence[str]) -> OperatorLineage[Any, Any]:
    """The datasets of a stage with these arguments of `python -m toolformer_ops`.

    It is None for a stage that has none.

    Raises:
        DatabaseError: Postgres does not answer.
    """
    if list(arguments[:1]) != ["stage"] or len(arguments) < 2:
        return OperatorLineage()
    # The provider asks in a separate process, forked from the task's: an engine of before would share its
    # connections.
    engine = database.connect(settings)
    try:
        with database.transaction(engine) as connection:
            inputs, outputs = _Stage(connection, arguments).datasets()
    finally:
        engine.dispose()
    return OperatorLineage(inputs=inputs, outputs=outputs)


class _Stage:
    """A stage that has ended, in a transaction."""

    def __init__(self, connection: Connection, arguments: Sequence[str]) -> None:
        self.connection = connection
        self.name = arguments[1]
        self.options = dict(itertools.pairwise(arguments))
        """By each word the next one: an option's value."""
        self.run_id = self.options.get("--run", "")
        self.without_calls = "--without-calls" in arguments
        url = connection.engine.url
        # Without a host, or with a socket's folder in its place, the database is on this machine.
        host = url.host if url.host and not url.host.startswith("/") else "localhost"
        self.namespace = f"postgres://{host}:{url.port or 5432}"
        self.schema = connection.execute(
            text("select current_database() || '.' || current_schema()")
        ).scalar_one()

    def rows(self, statement: Statement, **parameters: Any) -> list[Any]:
        return list(database.fetch_all(self.connection, statement, **parameters))

    def datasets(self) -> tuple[list[InputDataset], list[OutputDataset]]:
        """What the stage read, and what it wrote.

        Empty for a stage that only starts, chooses or ends a run.
        """
        tables_read, tables_written = READS_AND_WRITES.get(self.name, ((), ()))
        read = [self.read(table) for table in tables_read]
        written = [self.written(table) for table in tables_written]
        match self.name:
            case "ingest":
                items = [self.options.get("--field", "")]
                address = CorpusAddress.of(self.options["--corpus"], items).normal()
                read = [self.read(_at(address.files))]
                corpus_id = corpus_id_of(str(address))
                for newest in self.rows(queries.corpora.versions, corpus_id=corpus_id, at_most=1):
                    corpus = self.table(CORPUS_TABLE, f"corpus version {newest.version}")
                    written.append(self.written(corpus, rows=newest.documents))
            case "check":
                read = self._checked_tables()
            case "release":
                for release in self.rows(queries.releases.of_run, run_id=self.run_id):
                    written.append(self.written(_at(release.uri, release.release_id), rows=release.documents))
                    written.append(self.written("release_calls", rows=release.calls))
            case "check-release" | "finetune" | "publish":  # a training publishes nothing yet
                checks = "release" if self.name == "check-release" else None
                for release in self.rows(queries.releases.of_run, run_id=self.run_id):
                    data_set = _at(release.uri, release.release_id)
                    read.append(self.read(data_set, rows=release.documents, checks=checks))
                if self.name == "publish":
                    for model in self.rows(queries.evaluation.models_of_run, run_id=self.run_id):
                        if model.without_calls == self.without_calls:
                            written.append(self.written(_at(model.uri, model.model_id)))
            case "evaluate":
                models = self.rows(queries.evaluation.models_of_run, run_id=self.run_id)
                [scores] = self.rows(
                    queries.lineage.scores, run_id=self.run_id, suite=self.options.get("--suite")
                )
                read = [self.read(_at(model.uri, model.model_id)) for model in models]
                written = [self.written("evaluation_scores", rows=scores.rows)]
            case "report-evaluation":
                [scores] = self.rows(queries.lineage.scores, run_id=self.run_id, suite=None)
                read = [self.read("evaluation_scores", rows=scores.rows)]
        return read, written

    def _checked_tables(self) -> list[InputDataset]:
        """The tables of the tools with the rows that the run wrote in each; of placebos if it wrote any."""
        counts = {row.stage: row.rows for row in self.rows(queries.lineage.rows, run_id=self.run_id)}
        tables = []
        for table, stage in WRITTEN_BY.items():
            if table == "placebo_losses" and stage not in counts:
                continue
            checks = "tools" if table == "call_losses" else None
            tables.append(self.read(table, rows=counts.get(stage, 0), checks=checks))
        return tables

    def table(self, name: str, version: str | None = None) -> dict[str, Any]:
        """A table as a dataset; the corpus at this version, or else at the run's."""
        if name == CORPUS_TABLE and version is None:
            [run] = self.rows(queries.runs.by_id, run_id=self.run_id)
            version = f"corpus version {run.corpus_version}"
        return _dataset(self.namespace, f"{self.schema}.{name}", version)

    def read(
        self, of: str | dict[str, Any], *, rows: int | None = None, checks: str | None = None
    ) -> InputDataset:
        """A table by its name, or a dataset, that the stage read.

        `checks`: what its assertions are of, `tools` or `release`.
        """
        facets: dict[str, Any] = {}
        if rows is not None:
            facets["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                rowCount=rows
            )
        if checks is not None:
            assertions = []
            for row in self.rows(queries.lineage.checks, run_id=self.run_id, is_release=checks == "release"):
                severity = "error" if row.severity == "fail" else "warn"
                assertions.append(
                    data_quality_assertions_dataset.Assertion(
                        assertion=row.check_name, success=row.success, severity=severity
                    )
                )
            facet = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions=assertions)
            facets["dataQualityAssertions"] = facet
        return InputDataset(**(self.table(of) if isinstance(of, str) else of), inputFacets=facets)

    def written(self, of: str | dict[str, Any], *, rows: int | None = None) -> OutputDataset:
        """A table by its name, or a dataset, that the stage wrote."""
        facets: dict[str, Any] = {}
        if rows is not None:
            facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
            facets["outputStatistics"] = facet
        return OutputDataset(**(self.table(of) if isinstance(of, str) else of), outputFacets=facets)


def _at(address: str, version: str | None = None) -> dict[str, Any]:
    """What is at an address as a dataset, named as OpenLineage does: s3://bucket and key, or file and path."""
    parts = urlsplit(address)
    if parts.scheme == "s3":
        return _dataset(f"s3://{parts.netloc}", parts.path.strip("/") or "/", version)
    return _dataset("file", parts.path or address, version)


def _dataset(namespace: str, name: str, version: str | None) -> dict[str, Any]:
    """What datasets that were read and datasets that were written have in common."""
    facets = {"version": dataset_version_dataset.DatasetVersionDatasetFacet(version)} if version else {}
    return {"namespace": namespace, "name": name, "facets": facets}
