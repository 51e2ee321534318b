"""Who may start a run reaches no password by it: through the REST API, and then nothing that a run leaves holds one."""

import json
from pathlib import Path

from sqlalchemy import text

from tests.system.conftest import wait_until_ended
from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowError
from toolformer_ops.local_services.airflow_client import AirflowClient
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore

RELEASE = "0" * 16


def test_no_address_that_a_run_is_given_leads_to_a_password(
    services: Settings, airflow: AirflowClient, small_corpus: Path, writing_model_dir: Path, tmp_path: Path
) -> None:
    secrets = services.state_dir / "secrets.json"
    passwords = [value for name, value in json.loads(secrets.read_text()).items() if name != "s3_access_key"]
    assert len(passwords) >= 10
    (tmp_path / "link.jsonl").symlink_to(secrets)
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n')
    (model := tmp_path / "model").mkdir()
    for file in writing_model_dir.glob("[!.]*"):
        (model / file.name).symlink_to(file)
    (model / "vocab.json").symlink_to(secrets)
    annotation = {"corpus": str(small_corpus), "model": str(writing_model_dir), "finetune": False}
    # 1. Refused at once, or by the first task that meets it.
    for number, (dag_id, conf) in enumerate(
        [
            ("ingest_corpus", {"corpus": str(secrets)}),
            ("ingest_corpus", {"corpus": f"file://{tmp_path}/link.jsonl"}),
            ("annotate_corpus", annotation | {"corpus": str(services.state_dir)}),
            ("annotate_corpus", annotation | {"model": str(services.state_dir)}),
            ("annotate_corpus", annotation | {"model": str(model)}),
            (
                "annotate_corpus",
                annotation | {"evaluation_suites": ["math"], "evaluation_data": str(services.state_dir)},
            ),
            ("finetune_release", {"release": RELEASE, "evaluation_suites": ["math"], "evaluation_data": str(secrets)}),
            ("build_wiki_index", {"source": str(secrets)}),
        ]
    ):
        airflow.open_dag(dag_id)
        try:
            airflow.trigger(dag_id, f"secret-{number}", conf)
        except AirflowError as error:
            assert "expected files that may be read" in str(error)  # noqa: PT017 - a run that is made is red instead
        else:
            assert wait_until_ended(airflow, dag_id, f"secret-{number}") == "failed", conf
    # 2. A folder with a link to them is read, and the link counted.
    airflow.trigger("ingest_corpus", "secret-folder", {"corpus": str(tmp_path)})
    assert wait_until_ended(airflow, "ingest_corpus", "secret-folder") == "success"
    # 3. Nothing holds a password.
    with database.transaction(database.connect(services)) as connection:
        tables = connection.execute(text("select tablename from pg_tables where schemaname = 'public'")).scalars().all()
        left = {table: str(connection.execute(text(f'select * from "{table}"')).all()) for table in tables}
        refused = connection.execute(
            text("select reason, records from rejected_records where file_uri like '%link.jsonl'")
        )
        assert refused.all() == [("outside_corpus", 1)]
    store = ObjectStore(services)
    left |= {key: store.get(key).decode(errors="replace") for key in store.list("")}
    left |= {
        str(path): path.read_text(errors="replace") for path in services.state_dir.rglob("*.log") if path.is_file()
    }
    for dag_id in ("ingest_corpus", "annotate_corpus", "finetune_release", "build_wiki_index"):
        left[dag_id] = str(airflow.get(f"/dags/{dag_id}/dagRuns", limit=100))
    assert any(name.endswith(".log") for name in left)
    assert [name for name, content in left.items() if any(password in content for password in passwords)] == []
