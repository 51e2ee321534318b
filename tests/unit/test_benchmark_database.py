"""The database's benchmark counts all CPU time of a server, and writes corpora whose texts differ."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.database import cpu_seconds, write_lines

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
