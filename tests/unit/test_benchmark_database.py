"""The database's benchmark writes corpora whose texts differ, and counts CPU time of a server with its children."""

import json
import os
from pathlib import Path

from benchmarks.database import cpu_seconds, write_lines


def test_texts_of_a_corpus_differ_and_are_continued_and_a_server_has_its_cpu_seconds(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    write_lines(path, range(2000))
    write_lines(path, range(2000, 2010), "a")
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    assert len(set(texts)) == 2010
    assert "a total of" in texts[0]
    assert cpu_seconds(os.getpid()) > 0.1
