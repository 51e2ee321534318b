"""QA's readers side by side: `python -m benchmarks.readers`.

Questions of WebQuestions and Natural Questions (`--data`), of which the best five passages hold an answer, in the order of their
hashes. The index holds the demo's summaries and the articles of wiki_passages; it is built in `--out`, once. For each reader: how
often its first answer is exactly a right one, how often it holds one, CPU seconds a question; and the difference to
`best_sentence` with its 95 % interval, on the same questions.
"""

import gzip
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from toolformer_ops.config import load_settings
from toolformer_ops.demo.corpus import write_kilt_records
from toolformer_ops.demo.model import prepare_demo_model
from toolformer_ops.evaluation.statistics import paired_difference, wilson_interval
from toolformer_ops.evaluation.words import pieces
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.retrieval.bm25_index import Bm25Index
from toolformer_ops.retrieval.index_build import build
from toolformer_ops.tools.model_readers import CausalReader, SpanReader
from toolformer_ops.tools.question_answering import BestSentenceReader, Reader

PASSAGES = 5
ARTICLES = {"a", "an", "the"}


def words(text: str) -> str:
    """What two answers are compared by: pieces without articles, one space around each."""
    return f" {' '.join(piece for piece in pieces(text) if piece not in ARTICLES)} "


def holds(text: str, answers: Sequence[str]) -> bool:
    """Whether a text holds one of the answers."""
    return any(answer.strip() and answer in words(text) for answer in map(words, answers))


def is_exactly(text: str, answers: Sequence[str]) -> bool:
    """Whether a text is one of the answers."""
    return words(text) in map(words, answers)


def questions(data: Path) -> list[tuple[str, list[str]]]:
    """All questions with their answers, in the order of their hashes."""
    found = [
        json.loads(line) for line in (data / "nq_open" / "NQ-open.efficientqa.dev.1.1.jsonl").read_text().splitlines()
    ]
    with gzip.open(data / "webquestions" / "webq-train.jsonl.gz", "rt", encoding="utf-8") as lines:
        found += [json.loads(line) for line in lines]
    pairs = [(str(item["question"]), [str(answer) for answer in item["answer"]]) for item in found]
    return sorted(pairs, key=lambda pair: hashlib.sha256(pair[0].encode()).hexdigest())


def open_index(data: Path, out: Path) -> Bm25Index:
    """The index of both collections, built where it is not there."""
    records = out / "kilt.jsonl"
    if not records.is_file():
        unfinished = out / "kilt.part"
        write_kilt_records(unfinished)
        with unfinished.open("ab") as file, gzip.open(data / "wiki_passages" / "kilt_passages.jsonl.gz") as more:
            file.write(more.read())
        unfinished.rename(records)
    build(lambda: records.open("rb"), str(records), out / "index", threads=1)
    return Bm25Index.open(out / "index")


def measure(
    first: Annotated[
        int, typer.Option(help="Number of the first question, of those whose passages hold an answer.")
    ] = 0,
    count: Annotated[int, typer.Option(help="How many of them are asked.")] = 60,
    readers: Annotated[str, typer.Option(help="With commas: best_sentence, span, causal.")] = "best_sentence,span",
    data: Annotated[Path, typer.Option(help="Folder with nq_open, webquestions and wiki_passages.")] = Path(
        "../shared/data"
    ),
    out: Annotated[Path, typer.Option(help="Folder of the index.")] = Path(".toolformer/readers"),
) -> None:
    """Ask the readers, and print a line each."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    index = open_index(data, out)
    pairs = questions(data)
    found = index.search([question for question, _ in pairs], PASSAGES)
    asked = [
        (question, right, answer.passages)
        for (question, right), answer in zip(pairs, found, strict=True)
        if any(holds(passage.text, right) for passage in answer.passages)
    ]
    typer.echo(f"{len(asked)} of {len(pairs)} questions have an answer in their {PASSAGES} best passages", err=True)
    asked = asked[first : first + count]
    best_sentence = BestSentenceReader(index)
    model = None
    exact: dict[str, list[bool]] = {}
    held: dict[str, list[bool]] = {}
    for name in readers.split(","):
        reader: Reader = best_sentence
        if name != "best_sentence":
            model = model or LanguageModel.load(str(prepare_demo_model(load_settings().state_dir)))
            reader = SpanReader(model, best_sentence.best_sentences) if name == "span" else CausalReader(model)
        started = time.process_time()
        answers = reader.read([item[0] for item in asked], [item[2] for item in asked])
        seconds = (time.process_time() - started) / len(asked)
        first_answers = [answer[0] if answer else "" for answer in answers]
        exact[name] = [is_exactly(text, item[1]) for text, item in zip(first_answers, asked, strict=True)]
        held[name] = [holds(text, item[1]) for text, item in zip(first_answers, asked, strict=True)]
        any_held = sum(
            any(holds(text, item[1]) for text in answer) for answer, item in zip(answers, asked, strict=True)
        )
        typer.echo(f"{name}: any answer holds it {any_held}, {seconds:.3f} CPU s a question")
        for title, right in (("exactly", exact), ("holds", held)):
            interval = wilson_interval(sum(right[name]), len(asked))
            line = f"  {title}: {sum(right[name])} of {len(asked)} ({interval.low:.2f} to {interval.high:.2f})"
            if name != "best_sentence" and "best_sentence" in right:
                paired = paired_difference(right[name], right["best_sentence"])
                line += f", {paired.difference:+.2f} ({paired.interval.low:+.2f} to {paired.interval.high:+.2f}) to best_sentence"
            typer.echo(line)
        sys.stdout.flush()


if __name__ == "__main__":
    typer.run(measure)
