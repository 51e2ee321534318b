"""The database's benchmark counts all CPU time of a server, and writes corpora whose texts differ."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.database import COPIED_ROWS, TOOL, cpu_seconds, report, write_lines

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"
SERVER = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BURN!r}])            # ended before it is asked
child = subprocess.Popen([sys.executable, "-c", {BURN!r} + "print(1, flush=True); input()"], stdin=subprocess.PIPE)
sys.stdin.read()
child.communicate()
"""


def test_cpu_seconds_are_those_of_the_server_and_of_its_living_and_ended_children() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    before = cpu_seconds(server.pid)
    server.stdout.readline()  # both children have burned 0.4 s
    after = cpu_seconds(server.pid)
    server.stdin.close()
    server.wait()
    assert after - before >= 0.4


def test_texts_of_a_corpus_differ_and_are_continued(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    write_lines(path, range(2000))
    write_lines(path, range(2000, 2010), "a")
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    assert len(set(texts)) == 2010
    assert "a total of" in texts[0]


def test_the_table_has_an_aim_and_a_figure_for_each_size() -> None:
    figures = {
        "night: ingest": 3.0, "night: sample": 4.0, "undone: filter": 0.01, "undone: score": 0.02, "best calls": 0.2,
        "threshold_counts": 0.03, "yield_by_stage": 0.04, "annotation_progress": 0.05, f"check of {TOOL}, all": 4.5,
        "release": 15.0, "ingestion, 1 % new": 25.0, "COPY from 0": 1.0, "COPY from 5000": COPIED_ROWS / 50_000 - 1.0,
        "ingestion, first": 200.0, "end of the run": 1.0, "COPY of losses from 0": 2.0, "COPY of losses with terms from 0": 4.0,
        "bytes of losses": 150.0, "bytes of losses with terms": 249.0,
    }  # fmt: skip
    page = report([100_000, 1_000_000], [figures, figures | {"check of 100,000": 4.75, f"check of {TOOL}, all": 45.0}])
    lines = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in page.splitlines()[2:]
    }
    assert lines["what"] == ["aim", "100,000 documents", "1,000,000 documents"]
    assert lines["whole night, 1,000 documents new, five tools"] == ["60", "7.00", "7.00"]
    assert lines["undone documents of a stage, all done (the slowest stage)"] == ["0.1", "0.02", "0.02"]
    assert lines["check of a tool, 100,000 documents"] == ["5", "4.50", "4.75"]
    assert lines["the same with token log probabilities, rows/s"] == ["", *[f"{COPIED_ROWS / 4:,.2f}"] * 2]
    assert lines["COPY of candidate rows, rows/s"] == ["60,000", "50,000.00", "50,000.00"]
