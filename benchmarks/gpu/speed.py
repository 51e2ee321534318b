"""Parts 2 to 4: the peak of matrix products, annotation beside the plain way, and each rung of verification.

Shares of the peak count the matrix products of the layers alone, two operations a weight and token, over the peak
that was measured in the same run.
"""

import functools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.session import Row, Rows, Session
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.sizes import Work
from benchmarks.predictions import NEAR_A_THRESHOLD, NEAR_IN_TF32
from benchmarks.random_models import prompt_tokenizer, text_of_tokens
from benchmarks.works import sampling_choices
from toolformer_ops.annotation.candidates import annotation_prompt
from toolformer_ops.annotation.text_sampling import SampledText, TextToSample, sample_texts
from toolformer_ops.call_syntax import Call
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.devices import GIB
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models.loading import DTYPES
from toolformer_ops.language_model.scoring import score_texts
from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText
from toolformer_ops.records import PlacedCall
from toolformer_ops.tools.registry import get_tool

PEAK = "Peak: matrix products of a cube"
ANNOTATION = "Annotation, nothing pruned, nothing verified: ms a text by the clock"
VERIFICATION = (
    "Rungs of verification: a call's losses in each number format, nothing shared with another call"
)
WITH_VERIFICATION = "Texts an hour with verification, reckoned from the two tables above"
PEAK_RUNS = 10
PASSES_OF_A_CALL = 3
"""The text alone, with the call, with the call and its result."""
ROOM = 1.25
"""So many times its weights' memory a network needs at least, to do some work."""
SECONDS_OF_A_ROW = 30.0
"""A slower card annotates fewer texts than `Work` has, so that all is measured within minutes."""
FEW_TEXTS = 4
"""Texts that say how long the others will take: one alone leaves a GPU idle between its launches."""
PADDED_SEQUENCES = 64
"""Of a plain pass."""
SHARE_FOR_LOGITS = 0.3
"""Of what is free, for all logits of a plain pass."""


@contextmanager
def tf32() -> Iterator[None]:
    """Matrix products of float32 are TF32's meanwhile, on a GPU that has it."""
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def counted_tokens(network: Any) -> Iterator[list[int]]:
    """The tokens of each pass through the network meanwhile."""
    tokens: list[int] = []

    def count(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        tokens.append(kwargs["input_ids"].numel())

    hook = network.base_model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield tokens
    finally:
        hook.remove()


def rungs_of(session: Session, formats: Sequence[str]) -> list[str]:
    """Number formats that losses may be computed in, the most exact first; TF32 where the GPU has it."""
    has_tf32 = session.is_gpu and torch.cuda.get_device_capability(session.device) >= (8, 0)
    return ["float32", *(["TF32"] if has_tf32 else []), *(one for one in formats if one != "float32")]


def peaks(session: Session, work: Work, rungs: Sequence[str]) -> Rows:
    """Operations a second of each format."""
    for rung in rungs:
        yield {"format": rung, "side": work.cube, "TFLOP/s": _peak(session, rung, work.cube)}


def _peak(session: Session, rung: str, side: int) -> float:
    dtype = DTYPES.get(rung, torch.float32)
    left, right = (torch.randn(side, side, device=session.device, dtype=dtype) for _ in range(2))

    def products() -> None:
        for _ in range(PEAK_RUNS):
            torch.mm(left, right)

    with tf32() if rung == "TF32" else nullcontext():
        products()  # the first launches
        seconds, _ = session.timed(products)
    return 2 * side**3 * PEAK_RUNS / seconds / 1e12


def peak_of(session: Session, rung: str) -> float | None:
    """Operations a second as they were measured; None if they were not."""
    rows = session.sections.get(PEAK, [])
    return next((row["TFLOP/s"] * 1e12 for row in rows if row["format"] == rung), None)


def has_room(session: Session, shape: Shape, number_format: str, what: str) -> bool:
    """Whether a shape's weights fit with some room; if not, that is noted."""
    free, needed = session.free_bytes(), shape.weights * DTYPES[number_format].itemsize * ROOM
    if free is None or needed <= free:
        return True
    session.leave_out(
        f"{what}, {shape.name} in {number_format}",
        f"memory short: {needed / GIB:.0f} GiB needed, {free / GIB:.0f} free",
    )
    return False


def measure_annotation(session: Session, shape: Shape, work: Work, number_format: str) -> None:
    """The plain way and the engine, one after the other on the same weights."""
    if session.is_over or not has_room(session, shape, number_format, "annotation"):
        return
    network = session.attempt(
        f"weights of {shape.name}", lambda: shape.network(DTYPES[number_format], session.device)
    )
    if network is not None:
        annotation = Annotation(session, shape, work, number_format, network)
        # The plain way first: from then on the network's attention is the engine's.
        session.part(ANNOTATION, annotation.plain_rows())
        session.part(ANNOTATION, annotation.engine_rows())


@dataclass(frozen=True)
class Annotation:
    """One shape in one number format, with the network that annotates."""

    session: Session
    shape: Shape
    work: Work
    number_format: str
    network: Any

    def plain_rows(self) -> Rows:
        """A row a tool with transformers alone."""
        for tool in self.work.tools:
            row = self.session.attempt(
                f"the plain way, {self.shape.name}, {tool}", functools.partial(self._plain_row, tool)
            )
            if row is not None:
                yield row

    def engine_rows(self) -> Rows:
        """A row a tool by the stages' path: `sample_texts`, then `LanguageModel.score_texts` of what was sampled."""
        tokenization = Tokenization(prompt_tokenizer())
        model = LanguageModel(compared_model(self.network, self.shape.window), tokenization, self.shape.name)
        for tool in self.work.tools:
            row = self.session.attempt(
                f"the engine, {self.shape.name}, {tool}", functools.partial(self._engine_row, model, tool)
            )
            if row is not None:
                yield row

    @torch.inference_mode()
    def _plain_row(self, tool: str) -> Row:
        """A pass for the positions, `generate` at one of them, a padded pass for the losses."""
        session, work, network = self.session, self.work, self.network
        positions, samples, _ = work.tools[tool]
        prompt = len(prompt_tokenizer()(get_tool(tool).prompt)["input_ids"])
        session.watch_memory()
        # 1. Positions: prompt and text twice.
        ids = self._random_ids(1, prompt + 2 * work.text_tokens)
        reading = _second_run(session, functools.partial(network, input_ids=ids, use_cache=False))
        # 2. Samples at one position in the middle of the text.
        prefix = self._random_ids(1, prompt + 3 * work.text_tokens // 2)
        sample = functools.partial(
            network.generate,
            prefix,
            attention_mask=torch.ones_like(prefix),
            do_sample=True,
            num_return_sequences=samples,
            pad_token_id=0,
        )
        sample(max_new_tokens=2)
        one_position, _ = session.timed(
            functools.partial(sample, min_new_tokens=work.new_tokens, max_new_tokens=work.new_tokens)
        )
        # 3. Losses.
        padded = self._random_ids(self._padded_sequences(), work.text_tokens + work.new_tokens)
        one_batch = _second_run(
            session,
            functools.partial(
                network, input_ids=padded, attention_mask=torch.ones_like(padded), use_cache=False
            ),
        )
        sequences = PASSES_OF_A_CALL * positions * samples
        return self._row(
            tool,
            way="plain",
            texts=1,
            seconds=(reading, positions * one_position, sequences * one_batch / len(padded)),
            tokens_a_second=padded.numel() / one_batch,
        )

    def _engine_row(self, model: LanguageModel, tool: str) -> Row:
        session, work = self.session, self.work
        positions, samples, most_texts = work.tools[tool]
        prompt = annotation_prompt(get_tool(tool))
        choices = sampling_choices(positions, samples, work.new_tokens)
        tokenizer = prompt_tokenizer()
        to_sample = [
            TextToSample(text_of_tokens(tokenizer, work.text_tokens, number), str(number))
            for number in range(most_texts + FEW_TEXTS)
        ]
        # 1. What is loaded or compiled on first use, by one text that does not count; a few together then say for how many
        #    there is time.
        for few in (1, FEW_TEXTS):
            began = time.perf_counter()
            beginning = to_sample[-few:]
            first = sample_texts(model, prompt, " [", choices, beginning)
            model.score_texts(_placed(tool, beginning, first, samples), verify="off")
            a_text = (time.perf_counter() - began) / few
            model.forget_texts()
        texts = min(most_texts, max(1, int(SECONDS_OF_A_ROW / a_text)))
        # 2. The texts.
        session.watch_memory()
        sampling, sampled = session.timed(
            functools.partial(sample_texts, model, prompt, " [", choices, to_sample[:texts])
        )
        finding = sum(text.position_seconds for text in sampled)
        placed = _placed(tool, to_sample[:texts], sampled, samples)
        with counted_tokens(self.network) as tokens:
            scoring, _ = session.timed(functools.partial(model.score_texts, placed, verify="off"))
        return self._row(
            tool,
            way="engine",
            texts=texts,
            seconds=(finding / texts, (sampling - finding) / texts, scoring / texts),
            tokens_a_second=sum(tokens) / scoring,
        )

    def _row(
        self, tool: str, *, way: str, texts: int, seconds: Sequence[float], tokens_a_second: float
    ) -> Row:
        """A row of the table; `seconds` a text are those of positions, sampling and scoring."""
        positions, samples, _ = self.work.tools[tool]
        texts_an_hour = 3600 / sum(seconds)
        plain = [
            row["texts an hour"]
            for row in self.session.sections.get(ANNOTATION, [])
            if (row["shape"], row["tool"], row["way"]) == (self.shape.name, tool, "plain")
        ]
        operations_a_second = 2 * self.shape.layer_weights * tokens_a_second
        return {
            "shape": self.shape.name,
            "format": self.number_format,
            "tool": tool,
            "k x m": f"{positions} x {samples}",
            "way": way,
            "texts": texts,
            "positions": 1000 * seconds[0],
            "sampling": 1000 * seconds[1],
            "scoring": 1000 * seconds[2],
            "scoring, tokens/s": round(tokens_a_second),
            "share of the peak": _share(operations_a_second, peak_of(self.session, self.number_format)),
            "texts an hour": round(texts_an_hour),
            "times the plain way": texts_an_hour / plain[0] if plain else None,
            "GiB at most": self.session.memory_at_most(),
        }

    def _random_ids(self, rows: int, tokens: int) -> torch.Tensor:
        return torch.randint(1, self.shape.vocabulary, (rows, tokens), device=self.session.device)

    def _padded_sequences(self) -> int:
        """How many sequences a plain pass holds, all of whose logits are in memory."""
        free = self.session.free_bytes()
        if free is None:
            return 2
        a_sequence = (self.work.text_tokens + self.work.new_tokens) * self.shape.vocabulary * 4
        return max(1, min(PADDED_SEQUENCES, int(SHARE_FOR_LOGITS * free / a_sequence)))


def _share(operations_a_second: float, peak: float | None) -> str | None:
    return None if peak is None else f"{operations_a_second / peak:.0%}"


def _second_run(session: Session, run: Any) -> float:
    """Seconds of the second of two runs, whose kernels are loaded."""
    session.timed(run)
    return session.timed(run)[0]


def _placed(
    tool: str, texts: Sequence[TextToSample], sampled: Sequence[SampledText], samples: int
) -> list[tuple[str, list[PlacedCall]]]:
    """Each text with as many calls as were sampled for it."""
    return [
        (text.text, _calls(tool, [position.token for position in of_text.positions], samples))
        for text, of_text in zip(texts, sampled, strict=True)
    ]


def _calls(tool: str, tokens: Sequence[int], samples: int) -> list[PlacedCall]:
    """As many different calls at each token, of usual length."""
    return [
        PlacedCall(token, Call(tool, f"{1400 + token} - {7 + number}"), str(1393 + token - number))
        for token in tokens
        for number in range(samples)
    ]


def verification(session: Session, shape: Shape, work: Work, formats: Sequence[str]) -> Rows:
    """Milliseconds a call in each format, and by how many nats its loss reduction is off from float32's."""
    tokenizer = prompt_tokenizer()
    tokenization = Tokenization(tokenizer)
    tokenized = []
    for number in range(work.verified_texts):
        text = tokenization.tokenize(text_of_tokens(tokenizer, work.text_tokens, number))
        tokens = _spread(text.word_starts[1:], work.verified_calls)
        tokenized.append((text, _calls("Calculator", tokens, 1)))
    calls = sum(len(placed) for _, placed in tokenized)
    exact: list[float] = []
    model: CausalModel | None = None
    loaded = ""
    for rung in rungs_of(session, formats):
        # 1. The weights; the others make room. TF32 takes those of float32.
        number_format = "float32" if rung == "TF32" else rung
        if loaded != number_format:
            model, loaded = None, number_format
            session.free()
            if has_room(session, shape, number_format, f"verification in {rung}"):
                model = session.attempt(
                    f"weights of {shape.name} in {number_format}",
                    functools.partial(_causal_model, session, shape, number_format),
                )
        if model is None:
            continue
        # 2. The losses.
        session.watch_memory()
        outcome = session.attempt(
            f"verification in {rung}, {shape.name}",
            functools.partial(_timed_reductions, session, rung, model, tokenization, tokenized),
        )
        if outcome is None:
            continue
        seconds, reductions = outcome
        if rung == "float32":
            exact = reductions
        off = sorted(abs(one - other) for one, other in zip(reductions, exact, strict=False))
        yield {
            "shape": shape.name,
            "format": rung,
            "calls": calls,
            "ms a call": 1000 * seconds / calls,
            "off, nats: mean": statistics.fmean(off) if off else None,
            "of 99 %": off[math.ceil(0.99 * len(off)) - 1] if off else None,
            "most": off[-1] if off else None,
            "GiB at most": session.memory_at_most(),
        }


def _spread(tokens: Sequence[int], count: int) -> list[int]:
    """So many of the tokens, from the first to the last at equal distances: a call costs as many tokens as stand before it."""
    distance = max(1, (len(tokens) - 1) / max(1, count - 1))
    numbers = range(min(count, len(tokens)))
    return [tokens[round(number * distance)] for number in numbers]


def _causal_model(session: Session, shape: Shape, number_format: str) -> CausalModel:
    return compared_model(shape.network(DTYPES[number_format], session.device), shape.window)


def _timed_reductions(
    session: Session,
    rung: str,
    model: CausalModel,
    tokenization: Tokenization,
    texts: Sequence[tuple[TokenizedText, Sequence[PlacedCall]]],
) -> tuple[float, list[float]]:
    """Seconds of the second of two runs, and the loss reduction of each call."""
    run = functools.partial(_reductions, model, tokenization, texts)
    with tf32() if rung == "TF32" else nullcontext():
        run()
        return session.timed(run)


@torch.inference_mode()
def _reductions(
    model: CausalModel,
    tokenization: Tokenization,
    texts: Sequence[tuple[TokenizedText, Sequence[PlacedCall]]],
) -> list[float]:
    """The loss reduction of each call, in nats."""
    scored = score_texts(model, tokenization, texts)
    return [losses.reduction_bound for of_text in scored for losses in of_text]


def with_verification(session: Session) -> Rows:
    """Texts an hour if the calls near a threshold are computed again: in float32, or in a ladder with TF32."""
    milliseconds = {
        (row["shape"], row["format"]): row["ms a call"] for row in session.sections.get(VERIFICATION, [])
    }
    for row in session.sections.get(ANNOTATION, []):
        exact, between = (milliseconds.get((row["shape"], rung)) for rung in ("float32", "TF32"))
        if row["way"] == "plain" or exact is None:
            continue
        positions, samples = map(int, row["k x m"].split(" x "))
        calls = positions * samples
        unverified = row["positions"] + row["sampling"] + row["scoring"]
        verified = unverified + NEAR_A_THRESHOLD * calls * exact
        ladder = None
        if between is not None:
            ladder = unverified + calls * (NEAR_A_THRESHOLD * between + NEAR_IN_TF32 * exact)
        yield {
            "shape": row["shape"],
            "tool": row["tool"],
            "nothing verified": row["texts an hour"],
            f"{NEAR_A_THRESHOLD:.0%} of calls in float32": round(3_600_000 / verified),
            f"{NEAR_A_THRESHOLD:.0%} in TF32, {NEAR_IN_TF32:.0%} in float32": ladder
            and round(3_600_000 / ladder),
        }
