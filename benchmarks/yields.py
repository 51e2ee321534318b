"""What raises the calls that carry information, for each document and CPU second: `python -m benchmarks.yields`.

Every setting annotates the same texts: the demo's sums in prose and dated posts, worked answers of GSM8K, and dated paragraphs of
Digital.gov (`--data`). The judge is the placebo: the result of another call of the same tool, from another document, in the same
place. A tool's calls are counted at the lowest threshold (at least `LOWEST_THRESHOLD`) whose false-discovery rate, placebos at or
above it over calls at or above it, is at most `RATE`. Of the calls at one position the one that saves most counts, as in a release,
and calls whose input stands in the text only after them cost their seconds, but are not counted.

1. `sample`: a pool of samples for each text, at more places and with more samples a place than any setting takes. Samples do not
   depend on what is sampled beside them, so that a setting's calls are those of its places and of its first samples.
2. `score`: losses of each distinct call of a pool with its own result and with that of another call, by scoring window. A setting's
   CPU seconds are its texts' and its share of the pool's samples and scored calls; placebos are not counted.
3. `report`: the table. `foretold` counts without scores.

What is done already is in JSON Lines in `--out`, and is not done again.
"""

import gzip
import itertools
import json
import logging
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from toolformer_ops.annotation.candidates import (
    annotation_prompt,
    candidates_at,
    filter_document,
    given_call_start,
    read_call,
)
from toolformer_ops.annotation.placebo import JudgedCall, PlaceboDraw
from toolformer_ops.annotation.scoring import ScoredCall
from toolformer_ops.call_syntax import Call, clean_result
from toolformer_ops.config import load_settings
from toolformer_ops.demo.corpus import own_documents
from toolformer_ops.demo.model import prepare_demo_model
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.records import CallPosition, Document, PlacedCall, SampledContinuation, content_uuid
from toolformer_ops.runs import placebo_pools
from toolformer_ops.runs.choices import FilterChoices, PlaceboChoices
from toolformer_ops.tools.registry import get_tool

logger = logging.getLogger("benchmarks.yields")

TOOLS = ("Calculator", "Calendar")
TEXTS = 152
"""Of each tool: the demo's, and real ones up to this number."""
CHARACTERS = range(60, 141)
"""Length of a real text: short ones, so that some hundred fit into the time."""
PLACES = {"probability": 4, "probability_times_loss": 2}
"""By order, in the pools that several settings are parts of."""
SAMPLES = 3
CALL_TOKENS = 20
NUMBER_FORMAT = "bfloat16"
"""Of samples; it screens calls, and those that may count are scored again in float32."""
TOGETHER = 8
"""Texts that are sampled together."""
RATE = 0.1
"""Largest false-discovery rate at which calls are counted."""
LOWEST_THRESHOLD = 0.5
"""Nats."""
RESAMPLES, RESAMPLE_SEED = 4000, 15
FIRST_ROUND_SAVES = 0.1
"""Nats (or the bound) that a place's first calls must save for a second round there."""
PRUNE_BELOW = 0.5
"""Nats; what provably saves less is neither sampled nor scored, here as in a run at its defaults."""

_ANNOTATION = re.compile(r"<<[^<>]*>>")
_TIME_WORD = re.compile(
    r"\b(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|January|February|March|April|June|July|August|September|October|November"
    r"|December|today|tomorrow|yesterday|this (?:week|month|year))\b"
)


@dataclass(frozen=True)
class Pool:
    """How a pool is sampled."""

    temperature: float
    top_p: float = 1.0
    places: Mapping[str, int] = field(default_factory=lambda: PLACES)
    """By order."""
    samples: int = SAMPLES
    """A place."""


POOLS = {
    "t0.7": Pool(0.7),
    "t1.0": Pool(1.0, places={"probability": 2}, samples=2),
    "p0.9": Pool(1.0, 0.9, places={"probability": 2}, samples=2),
    "bootstrapped": Pool(0.7),
}
"""`bootstrapped`: positions and samples of a model finetuned on a first release (`--proposer`), losses of the first model."""


@dataclass(frozen=True)
class Subject:
    """A text of one tool."""

    tool: str
    source: str
    document: Document

    @property
    def seed_key(self) -> str:
        """As a run has it."""
        return f"0|{self.tool}|{self.document.document_id}|0"


def subjects(data: Path) -> list[Subject]:
    """The texts, the tools' in turn; the demo's first, each part in an order that its hashes decide."""
    real = {"Calculator": ("gsm8k", _worked_answers), "Calendar": ("digitalgov", _dated_paragraphs)}
    demo = {"Calculator": "sums_in_prose", "Calendar": "dated_posts"}
    columns = []
    for name in TOOLS:
        tool = get_tool(name)
        own = [Document.of(item.text, item.url) for item in own_documents(demo[name])]
        source, read = real[name]
        kept = (document for document in read(data) if filter_document(tool, document, FilterChoices())[0].kept)
        ordered = [sorted(documents, key=lambda item: item.document_id) for documents in (own, kept)]
        found = [
            Subject(name, of, document)
            for of, documents in zip(("demo", source), ordered, strict=True)
            for document in documents
        ]
        columns.append(found[:TEXTS])
    return [item for row in zip(*columns, strict=True) for item in row]


def _worked_answers(data: Path) -> Iterator[Document]:
    with gzip.open(data / "gsm8k" / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            text = _ANNOTATION.sub("", json.loads(line)["answer"].partition("\n####")[0])
            if len(text) in CHARACTERS:
                yield Document.of(text)


def _dated_paragraphs(data: Path) -> Iterator[Document]:
    """Of each dated post the first paragraph of the right length that speaks of a time."""
    with gzip.open(data / "digitalgov" / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            for text in record["text"].split("\n") if record["date"] else ():
                if len(text) in CHARACTERS and _TIME_WORD.search(text):
                    yield Document.of(text, record["url"])
                    break


def best_places(places: Sequence[tuple[CallPosition, float]], count: int, order: str) -> list[int]:
    """The tokens of the `count` best positions that are not pruned, in the order of the text.

    `places` are positions with L(nothing) there; `order` is `probability`, or `probability_times_loss`.
    """
    open_places = [item for item in places if item[1] >= PRUNE_BELOW]

    def value(item: tuple[CallPosition, float]) -> float:
        position, loss = item
        return position.probability * (loss if order == "probability_times_loss" else 1.0)

    return sorted(item[0].token for item in sorted(open_places, key=value, reverse=True)[:count])


def sample_pool(
    model: LanguageModel, proposer: LanguageModel, items: Sequence[Subject], pool: Pool, file: Path
) -> None:
    """Add to `file` one line a text that it does not hold yet: positions and samples of `proposer`, losses of `model`."""
    done = {line["id"] for line in read_lines(file)}
    for name in TOOLS:
        left = [item for item in items if item.tool == name and f"{name}|{item.document.document_id}" not in done]
        tool = get_tool(name)
        prompt = annotation_prompt(tool)
        for first in range(0, len(left), TOGETHER):
            group = left[first : first + TOGETHER]
            sampler = proposer.start_sampling(
                prompt,
                samples=pool.samples,
                max_new_tokens=CALL_TOKENS,
                call_start=given_call_start(tool, "tool_name"),
                temperature=pool.temperature,
                top_p=pool.top_p,
            )
            texts = [item.document.text for item in group]
            clock = [time.process_time()]
            found = proposer.find_positions(prompt, texts, at_most=10_000, threshold=0.0)
            clock.append(time.process_time())
            losses = model.losses_without_call(
                [(text, [one.token for one in positions]) for text, positions in zip(texts, found, strict=True)]
            )
            chosen, described = [], []
            for positions, of_text in zip(found, losses, strict=True):
                places = list(zip(positions, of_text, strict=True))
                taken = {token for order, count in pool.places.items() for token in best_places(places, count, order)}
                chosen.append(sorted(taken))
                described.append([[one.token, one.char, one.probability, loss] for one, loss in places])
            clock.append(time.process_time())
            for item, tokens in zip(group, chosen, strict=True):
                sampler.add(item.document.text, tokens, item.seed_key)
            sampled = sampler.finish()
            clock.append(time.process_time())
            seconds = [ended - began for began, ended in itertools.pairwise(clock)]
            shares = [seconds[0] / len(group), seconds[1] / len(group), seconds[2] / max(1, sum(map(len, chosen)))]
            with file.open("a", encoding="utf-8") as out:
                for item, tokens, places_of, samples in zip(group, chosen, described, sampled, strict=True):
                    line = {
                        "id": f"{item.tool}|{item.document.document_id}",
                        "tool": item.tool,
                        "source": item.source,
                        "text": item.document.text,
                        "url": item.document.url,
                        "seconds": {"positions": shares[0], "losses": shares[1], "sampling": shares[2] * len(tokens)},
                        "places": places_of,
                        "samples": {
                            token: [[one.text, one.finished] for one in of_place]
                            for token, of_place in zip(tokens, samples, strict=True)
                        },
                    }
                    out.write(json.dumps(line) + "\n")
            logger.info("%s: %d of %d, CPU %.0f s", name, first + len(group), len(left), time.process_time())


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON Lines; none where it is not there."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]


@dataclass(frozen=True)
class Scored:
    """A distinct call of a text, with its losses."""

    text: str
    """The text's id."""
    source: str
    token: int
    first_sample: int
    """The first of the place's samples that is this call."""
    result: str
    reduction: float
    """Nats; where it is below `PRUNE_BELOW`, a bound."""
    placebo: str | None
    """The result of another call that was put in its place; None where no other text has another result."""
    placebo_reduction: float | None
    input_only_after: bool
    """Its input stands in the text only after it: a release leaves it out."""


Executed = tuple[int, int, Call, str, bool]
"""A call that has a result: token, number of the first sample, call, result, whether its input stands only after it."""


def executed_calls(lines: Sequence[dict[str, Any]]) -> dict[str, list[Executed]]:
    """For each text its distinct calls that have a result."""
    settings = load_settings()
    runners = {name: get_tool(name).open(settings, _no_model) for name in TOOLS}
    found: dict[str, list[Executed]] = {}
    for line in lines:
        tool, document = get_tool(line["tool"]), Document.of(line["text"], line["url"])
        positions = {token: CallPosition(token, char, p) for token, char, p, _ in line["places"]}
        found[line["id"]] = calls = []
        for place, samples in line["samples"].items():
            position = positions[int(place)]
            written = [SampledContinuation(text, finished) for text, finished in samples]
            candidates, _, _ = candidates_at(tool, document, line["text"], position, written)
            answers = runners[line["tool"]].run([one.effective_input for one in candidates])
            read = [read_call(tool, one) for one in written]
            calls += [
                (position.token, read.index(one.call), one.call, clean_result(answer.results[0]), one.input_only_after)
                for one, answer in zip(candidates, answers, strict=True)
                if answer.results
            ]
    return found


def drawn_placebos(
    lines: Sequence[dict[str, Any]], calls: Mapping[str, Sequence[Executed]]
) -> dict[str, list[str | None]]:
    """For each text the placebo of each of its calls, drawn as a run draws; None where no other text has another result."""
    judged = {
        line["id"]: [
            JudgedCall(
                call_id=content_uuid(line["id"], str(token), str(call)),
                document_id=content_uuid(line["id"]),
                token=token,
                call=call,
                scored=ScoredCall(result=result),
            )
            for token, _, call, result, _ in calls[line["id"]]
        ]
        for line in lines
    }
    found: dict[str, list[str | None]] = {}
    for name in TOOLS:
        of_tool = {line["id"]: judged[line["id"]] for line in lines if line["tool"] == name}
        every = (one for of_text in of_tool.values() for one in of_text)
        pool = placebo_pools.Pool.of_calls(
            ((one.call_id, one.document_id, str(one.scored.result)) for one in every), PlaceboChoices(placebos=1)
        )
        draw = PlaceboDraw(pool)
        for key, of_text in of_tool.items():
            draws = [draw.of_call(one, 1) for one in of_text]
            found[key] = [one[0].result if one else None for one in draws]
    return found


def score_pool(model: LanguageModel, lines: Sequence[dict[str, Any]], window: int | None, file: Path) -> None:
    """Add to `file` one line a text that it does not hold yet: its calls, scored with `window` tokens of text before them."""
    done = {line["id"] for line in read_lines(file)}
    calls = executed_calls(lines)
    placebos_of = drawn_placebos(lines, calls)
    left = sorted((line for line in lines if line["id"] not in done), key=lambda line: bool(line["source"] != "demo"))
    for first in range(0, len(left), TOGETHER):
        group = left[first : first + TOGETHER]
        own, swapped, placebos = [], [], []
        for line in group:
            of_text = calls[line["id"]]
            drawn = placebos_of[line["id"]]
            placebos.append(drawn)
            own.append((line["text"], [PlacedCall(token, call, result) for token, _, call, result, _ in of_text]))
            in_place = [
                PlacedCall(token, call, other)
                for (token, _, call, *_), other in zip(of_text, drawn, strict=True)
                if other is not None
            ]
            swapped.append((line["text"], in_place))
        began = time.process_time()
        reductions = _reductions(model, own, window)
        seconds = (time.process_time() - began) / max(1, sum(map(len, reductions)))
        of_placebos = [iter(found) for found in _reductions(model, swapped, window)]
        with file.open("a", encoding="utf-8") as out:
            for line, drawn, own_of, placebo_of_text in zip(group, placebos, reductions, of_placebos, strict=True):
                scored = [
                    Scored(line["id"], line["source"], token, first_sample, result, reduction, other,
                           None if other is None else next(placebo_of_text), only_after)
                    for (token, first_sample, _, result, only_after), other, reduction in zip(
                        calls[line["id"]], drawn, own_of, strict=True
                    )
                ]  # fmt: skip
                written = {"id": line["id"], "seconds": seconds * len(scored), "calls": [asdict(one) for one in scored]}
                out.write(json.dumps(written) + "\n")
        logger.info("%s: %d of %d, CPU %.0f s", file.name, first + len(group), len(left), time.process_time())


def _reductions(
    model: LanguageModel, texts: Sequence[tuple[str, Sequence[PlacedCall]]], window: int | None
) -> list[list[float]]:
    found = model.score_texts(texts, prune_below=PRUNE_BELOW, float32_from=PRUNE_BELOW, context_tokens=window)
    return [[0.0 if math.isnan(one.reduction_bound) else one.reduction_bound for one in of_text] for of_text in found]


@dataclass(frozen=True)
class Setting:
    """One way to annotate, as a part of a pool."""

    name: str
    pool: str = "t0.7"
    order: str = "probability"
    places: int = 2
    samples: int = 2
    window: int | None = None
    first_round: int = 0
    """Samples that all places get; the others only where one of these saves something. 0: all places get all samples."""
    score_unreleasable: bool = True
    """Whether calls whose input stands only after them are scored."""


SETTINGS = (
    Setting("the demo's: 2 places, 2 samples, temperature 0.7"),
    Setting("the demo's; calls that no release takes are not scored", score_unreleasable=False),
    Setting(
        "1 place, 3 samples; calls that no release takes are not scored", places=1, samples=3, score_unreleasable=False
    ),
    Setting("positions by p times loss", order="probability_times_loss"),
    Setting("more places, fewer samples: 4 places, 1 sample", places=4, samples=1),
    Setting("1 place, 3 samples", places=1, samples=3),
    Setting("more of both: 4 places, 3 samples", places=4, samples=3),
    Setting("two rounds: 4 places, 1 sample; 2 more where the first saves", places=4, samples=3, first_round=1),
    Setting("temperature 1", pool="t1.0"),
    Setting("temperature 1, top_p 0.9", pool="p0.9"),
    Setting("bootstrapped: a model finetuned on a first release proposes", pool="bootstrapped"),
    Setting("bootstrapped, 1 place, 1 sample", pool="bootstrapped", places=1, samples=1),
    Setting("bootstrapped, 4 places, 1 sample", pool="bootstrapped", places=4, samples=1),
    Setting("scoring window of 32 tokens", window=32),
    Setting("scoring window of 16 tokens", window=16),
)


@dataclass(frozen=True)
class Yield:
    """What a setting gives for one tool."""

    tool: str
    texts: int
    calls: int
    """Distinct, with a result, their input not only after them."""
    threshold: float | None
    """Nats: the lowest that holds the rate; None where no threshold does."""
    kept: int
    """Texts' places with a call at or above it."""
    kept_demo: int
    rate: float | None
    """Placebos at or above the threshold over calls at or above it."""
    kept_at_half: int
    """Places with a call of at least `LOWEST_THRESHOLD`, whatever the rate."""
    rate_at_half: float | None
    informed_at_half: int
    """Calls that reach `LOWEST_THRESHOLD` less placebos that do: how many are expected to be there for their own results. Steadier
    than `kept` where calls are few."""
    cpu_seconds: float
    """A text."""
    by_text: Mapping[str, tuple[int, float]]
    """Of each text the calls less placebos at `LOWEST_THRESHOLD`, and the CPU seconds."""


def yields(setting: Setting, lines: Sequence[dict[str, Any]], scores: dict[str, dict[str, Any]]) -> list[Yield]:
    """What a setting gives, tool by tool; `lines` are its pool's, `scores` its pool's with its window, by text."""
    found = []
    for name in TOOLS:
        of_tool = [line for line in lines if line["tool"] == name and line["id"] in scores]
        calls: list[Scored] = []
        by_text: dict[str, tuple[int, float]] = {}
        for line in of_tool:
            places = [(CallPosition(token, char, p), loss) for token, char, p, loss in line["places"]]
            chosen = set(best_places(places, setting.places, setting.order))
            all_calls = [Scored(**one) for one in scores[line["id"]]["calls"]]
            of_text = [one for one in all_calls if one.token in chosen and one.first_sample < setting.samples]
            samples = len(chosen) * setting.samples
            if setting.first_round:
                first = [one for one in of_text if one.first_sample < setting.first_round]
                worth = {one.token for one in first if one.reduction >= FIRST_ROUND_SAVES}
                of_text = [one for one in of_text if one in first or one.token in worth]
                samples = len(chosen) * setting.first_round + len(worth) * (setting.samples - setting.first_round)
            in_pool = sum(map(len, line["samples"].values()))
            seconds = line["seconds"]["positions"] + line["seconds"]["losses"]
            seconds += line["seconds"]["sampling"] * samples / max(1, in_pool)
            counted = [one for one in of_text if not one.input_only_after]
            scored = of_text if setting.score_unreleasable else counted
            seconds += scores[line["id"]]["seconds"] * len(scored) / max(1, len(all_calls))
            by_text[line["id"]] = (sum(map(_beyond_chance, counted)), seconds)
            calls += counted
        threshold = lowest_threshold(calls)
        kept = set() if threshold is None else {(one.text, one.token) for one in calls if one.reduction >= threshold}
        demo = {(one.text, one.token) for one in calls if one.source == "demo"}
        found.append(
            Yield(
                tool=name,
                texts=len(of_tool),
                calls=len(calls),
                threshold=threshold,
                kept=len(kept),
                kept_demo=len(kept & demo),
                rate=None if threshold is None else false_discovery_rate(calls, threshold),
                kept_at_half=len({(one.text, one.token) for one in calls if one.reduction >= LOWEST_THRESHOLD}),
                rate_at_half=false_discovery_rate(calls, LOWEST_THRESHOLD),
                informed_at_half=sum(map(_beyond_chance, calls)),
                cpu_seconds=sum(seconds for _, seconds in by_text.values()) / max(1, len(of_tool)),
                by_text=by_text,
            )
        )
    return found


def _beyond_chance(call: Scored) -> int:
    """1, 0 or -1: whether the call reaches `LOWEST_THRESHOLD`, less whether its placebo does."""
    return (call.reduction >= LOWEST_THRESHOLD) - ((call.placebo_reduction or 0.0) >= LOWEST_THRESHOLD)


def times_as_many(one: Yield, other: Yield) -> tuple[float, float, float]:
    """Calls less placebos a CPU second of `one` over those of `other`, with the 95 % interval, which resamples texts."""
    common = sorted(one.by_text.keys() & other.by_text.keys())
    counts = np.array([[*one.by_text[text], *other.by_text[text]] for text in common])  # (texts, 4)
    weights = np.random.default_rng(RESAMPLE_SEED).dirichlet(np.ones(len(common)), size=RESAMPLES)  # (resamples, texts)
    gained, seconds, others, others_seconds = (
        np.vstack([np.ones(len(common)), weights]) @ counts
    ).T  # (1 + resamples,) each
    ratios = (gained / seconds) / (others / others_seconds)
    low, high = np.quantile(ratios[1:], [0.025, 0.975])
    return float(ratios[0]), float(low), float(high)


def false_discovery_rate(calls: Sequence[Scored], threshold: float) -> float | None:
    """Placebos at or above a threshold over calls at or above it, of the calls that have a placebo; None without calls there."""
    judged = [one for one in calls if one.placebo_reduction is not None]
    above = sum(one.reduction >= threshold for one in judged)
    placebos = sum((one.placebo_reduction or 0.0) >= threshold for one in judged)
    return placebos / above if above else None


def lowest_threshold(calls: Sequence[Scored]) -> float | None:
    """The lowest loss reduction of a call, at least `LOWEST_THRESHOLD`, from which on the rate is at most `RATE`."""
    for threshold in sorted(
        {max(one.reduction, LOWEST_THRESHOLD) for one in calls if one.reduction >= LOWEST_THRESHOLD}
    ):
        rate = false_discovery_rate(calls, threshold)
        if rate is not None and rate <= RATE:
            return threshold
    return None


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
Out = Annotated[Path, typer.Option(help="Folder of what is done.")]
Data = Annotated[Path, typer.Option(help="Folder with gsm8k and digitalgov.")]
DEFAULT_OUT = Path(".toolformer/yields")
DEFAULT_DATA = Path("../shared/data")


@app.command()
def sample(
    pools: str = "t0.7",
    tools: str = ",".join(TOOLS),
    sources: str = "demo,gsm8k,digitalgov",
    proposer: Annotated[
        Path | None, typer.Option(help="Folder of the model that proposes calls; the demo's without it.")
    ] = None,
    out: Out = DEFAULT_OUT,
    data: Data = DEFAULT_DATA,
) -> None:
    """Sample pools; names with commas between them."""
    out.mkdir(parents=True, exist_ok=True)
    model = _model()
    proposing = LanguageModel.load(str(proposer), dtype=NUMBER_FORMAT) if proposer else model
    items = [item for item in subjects(data) if item.tool in tools.split(",") and item.source in sources.split(",")]
    for name in pools.split(","):
        sample_pool(model, proposing, items, POOLS[name], out / f"samples-{name}.jsonl")


@app.command()
def score(pools: str = "t0.7", windows: str = "0", tools: str = ",".join(TOOLS), out: Out = DEFAULT_OUT) -> None:
    """Score pools that are sampled, with each of the windows (tokens, with commas between them; 0 is the whole text)."""
    model = _model()
    for name, tool in itertools.product(pools.split(","), tools.split(",")):
        lines = [line for line in read_lines(out / f"samples-{name}.jsonl") if line["tool"] == tool]
        for window in map(int, windows.split(",")):
            score_pool(model, lines, window or None, out / f"scores-{name}-{window}.jsonl")


@app.command()
def foretold(pool: str = "t0.7", out: Out = DEFAULT_OUT) -> None:
    """Count, without any loss, the places with a call of the Calculator whose result is the number that follows in the text."""
    lines = [line for line in read_lines(out / f"samples-{pool}.jsonl") if line["tool"] == "Calculator"]
    calls = executed_calls(lines)
    typer.echo("| order | places | samples a place | samples | places foretold | in texts of the demo |")
    typer.echo("|---|---|---|---|---|---|")
    for order, most in PLACES.items():
        for count, samples in itertools.product(range(1, most + 1), range(1, SAMPLES + 1)):
            sampled, found = 0, set()
            for line in lines:
                places = [(CallPosition(token, char, p), loss) for token, char, p, loss in line["places"]]
                chars = {position.token: position.char for position, _ in places}
                chosen = set(best_places(places, count, order))
                sampled += len(chosen) * samples
                found |= {
                    (line["source"], line["id"], token)
                    for token, first_sample, _, result, only_after in calls[line["id"]]
                    if token in chosen
                    and first_sample < samples
                    and not only_after
                    and next_number(line["text"][chars[token] :]) == result
                }
            of_demo = sum(source == "demo" for source, *_ in found)
            typer.echo(f"| {order} | {count} | {samples} | {sampled} | {len(found)} | {of_demo} |")


def next_number(text: str) -> str | None:
    """The number that a text begins with, behind white space, `=` and a currency, as the Calculator writes it; or None."""
    found = re.match(r"\s*=?\s*[$\u20ac\u00a3]?(\d[\d,]*(?:\.\d+)?)", text)
    return found.group(1).replace(",", "") if found else None


@app.command()
def report(out: Out = DEFAULT_OUT) -> None:
    """Print the table of the settings whose pools are scored."""
    columns = (
        "setting", "tool", "texts", "calls", "kept at the rate", "of these in the demo's texts", "threshold", "places at 0.5 nats",
        "rate there", "calls less placebos there", "CPU s a text", "kept a CPU s", "calls less placebos a CPU s",
        "of the first setting's (95 %)",
    )  # fmt: skip
    typer.echo(f"| {' | '.join(columns)} |")
    typer.echo("|---" * len(columns) + "|")
    first: dict[str, Yield] = {}
    for setting in SETTINGS:
        lines = read_lines(out / f"samples-{setting.pool}.jsonl")
        scores = {line["id"]: line for line in read_lines(out / f"scores-{setting.pool}-{setting.window or 0}.jsonl")}
        for one in yields(setting, lines, scores) if scores else ():
            threshold = "none" if one.threshold is None else f"{one.threshold:.2f}"
            half = "" if one.rate_at_half is None else f"{one.rate_at_half:.2f}"
            if not one.texts:
                continue
            seconds = one.cpu_seconds * one.texts
            ratio, low, high = times_as_many(one, first.setdefault(one.tool, one))
            cells = (
                setting.name, one.tool, one.texts, one.calls, one.kept, one.kept_demo, threshold, one.kept_at_half, half,
                one.informed_at_half, f"{one.cpu_seconds:.2f}", f"{one.kept / seconds:.2f}",
                f"{one.informed_at_half / seconds:.2f}", f"{ratio:.2f} ({low:.2f} to {high:.2f})",
            )  # fmt: skip
            typer.echo(f"| {' | '.join(map(str, cells))} |")


def _no_model() -> LanguageModel:
    raise ModelError("expected a tool that asks no language model. Leave it out of benchmarks/yields.py.")


def _model() -> LanguageModel:
    torch.set_num_threads(1)
    return LanguageModel.load(str(prepare_demo_model(load_settings().state_dir)), dtype=NUMBER_FORMAT)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    app()
