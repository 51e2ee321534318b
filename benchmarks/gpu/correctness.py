"""Part 1: tiny random models of each architecture on the device, in each number format, against the CPU in float32.

Positions, samples and losses of a few texts. On a GPU the table also says by what a network attends: by the kernel
of variable lengths, or, where that is refused, by what and why.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from benchmarks.gpu.session import Row, Rows, Session
from benchmarks.random_models import prompt_tokenizer, random_network, text_of_tokens, tiny_config
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import load_settings
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models.loading import DTYPES
from toolformer_ops.language_model.packing import LARGEST_WIDTH
from toolformer_ops.language_model.scoring import MARGINS
from toolformer_ops.language_model.tokenization import AnnotationPrompt, Tokenization
from toolformer_ops.records import PlacedCall

PROMPT = AnnotationPrompt("Calculator", "Add calls to a Calculator.\nInput: {text}\nOutput:")
TEXT_TOKENS = (9, 24, 40)
"""Of each text; the window of those that have one is 24."""
POSITIONS, SAMPLES, NEW_TOKENS = 3, 8, 8
LAYERS = 2
WINDOW_TOKENS = 1024
SCALE = 10.0
"""Of the matrices' random weights, so that predictions are not flat."""
LARGEST_FLOAT32_DIFFERENCE = 1e-3
"""Nats and probability: above it a result in float32 is another one."""

FEWEST_EQUAL = 0.9
"""Of the samples in float32: the others are at a border of two tokens, where rounding decides."""
COMPILED = "llama"
"""The architecture whose norms, rotary positions and activations are compiled, as those of a model that works are."""


@dataclass(frozen=True)
class Outcome:
    """What an engine gave for the texts."""

    positions: list[dict[int, float]]
    """By text, the probability of a call at each of the likeliest tokens."""
    samples: list[str]
    """Of all texts at the positions that the CPU has found."""
    reductions: list[float]
    """Loss reduction of each call, in nats."""
    largest_difference_alone: float
    """Nats by which a loss differs between a text alone and all texts together."""


@dataclass
class AttentionCalls:
    """By what a network attended."""

    kernel: int = 0
    """Launches of the kernel of variable lengths."""
    fused: int = 0
    """Calls of torch's scaled_dot_product_attention."""

    def in_words(self, reason: str) -> str:
        """For a table; `reason` says why there is no kernel."""
        if self.kernel and not self.fused:
            return "kernel"
        if self.kernel:
            return "kernel, scaled_dot_product_attention for a part"
        return f"{'scaled_dot_product_attention' if self.fused else 'matrix products'} ({reason})"


@contextmanager
def attention_calls() -> Iterator[AttentionCalls]:
    """Count by what networks attend meanwhile."""
    import torch.nn.attention.varlen as module

    calls = AttentionCalls()
    fused = functional.scaled_dot_product_attention
    kernel = getattr(module, "varlen_attn_out", None)

    def counted_fused(*args: Any, **kwargs: Any) -> Any:
        calls.fused += 1
        return fused(*args, **kwargs)

    def counted_kernel(*args: Any, **kwargs: Any) -> Any:
        calls.kernel += 1
        assert kernel is not None  # noqa: S101 - it is patched only where it is there
        return kernel(*args, **kwargs)

    with mock.patch.object(functional, "scaled_dot_product_attention", counted_fused):
        if kernel is None:
            yield calls
            return
        with mock.patch.object(module, "varlen_attn_out", counted_kernel):
            yield calls


def why_no_kernel(config: Any, dtype: torch.dtype, device: torch.device) -> str:
    """What keeps a network's attention from the kernel of variable lengths, in words."""
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    if device.type != "cuda":
        return "a CPU"
    if dtype == torch.float32:
        return "float32"
    if getattr(config, "attn_logit_softcapping", None):
        return "capped scores"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "a GPU before Ampere"
    if width % 8 or width > LARGEST_WIDTH:
        return f"heads of {width}"
    return "not known"


def correctness(session: Session, architectures: Sequence[str], formats: Sequence[str]) -> Rows:
    """A row for each architecture and number format."""
    tokenizer = prompt_tokenizer()
    texts = [text_of_tokens(tokenizer, tokens, number) for number, tokens in enumerate(TEXT_TOKENS)]
    for architecture in architectures:
        exact = session.attempt(
            f"{architecture} on the CPU",
            lambda architecture=architecture: _outcome(  # type: ignore[misc]
                _engine(architecture, tokenizer, "float32", torch.device("cpu")), texts, None
            ),
        )
        if exact is None:
            continue
        for number_format in formats:
            row = session.attempt(
                f"{architecture} in {number_format}",
                lambda architecture=architecture, number_format=number_format, exact=exact: _row(  # type: ignore[misc]
                    session, architecture, number_format, tokenizer, texts, exact
                ),
            )
            if row is not None:
                yield row


def _row(
    session: Session,
    architecture: str,
    number_format: str,
    tokenizer: Any,
    texts: Sequence[str],
    exact: Outcome,
) -> Row:
    """One architecture in one format; differences that are no rounding are problems."""
    engine = _engine(architecture, tokenizer, number_format, session.device)
    with attention_calls() as calls:
        outcome = _outcome(engine, texts, exact)
    config = tiny_config(architecture, tokenizer, LAYERS)
    reason = why_no_kernel(config, DTYPES[number_format], session.device)
    name = f"{architecture} in {number_format}"
    if session.is_gpu and number_format != "float32" and not calls.kernel:
        session.leave_out(f"{name}: the kernel of variable lengths", reason)
    probabilities = [
        abs(probability - expected[token])
        for own, expected in zip(outcome.positions, exact.positions, strict=True)
        for token, probability in own.items()
        if token in expected
    ]
    losses = [abs(own - right) for own, right in zip(outcome.reductions, exact.reductions, strict=True)]
    equal = sum(own == right for own, right in zip(outcome.samples, exact.samples, strict=True))
    most = LARGEST_FLOAT32_DIFFERENCE if number_format == "float32" else MARGINS[number_format]
    if not max(losses) <= most:
        session.problems.append(f"{name}: loss reductions off by {max(losses):.3g} nats, at most {most:g}")
    if number_format == "float32" and equal < FEWEST_EQUAL * len(exact.samples):
        session.problems.append(f"{name}: {equal} of {len(exact.samples)} samples are those of the CPU")
    if number_format == "float32" and not max(probabilities, default=0.0) <= most:
        session.problems.append(f"{name}: probabilities of positions off by {max(probabilities):.3g}")
    return {
        "architecture": architecture,
        "format": number_format,
        "attention": calls.in_words(reason),
        "positions off": max(probabilities, default=None),
        "samples equal": f"{equal} of {len(exact.samples)}",
        "losses off, mean": statistics.fmean(losses),
        "most, nats": max(losses),
        "alone against together, nats": outcome.largest_difference_alone,
    }


def _engine(architecture: str, tokenizer: Any, number_format: str, device: torch.device) -> LanguageModel:
    """The architecture with random weights, the same in each number format."""
    network = random_network(tiny_config(architecture, tokenizer, LAYERS))
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(SCALE)
    placed = network.to(DTYPES[number_format]).to(device)
    # To compile takes some seconds an architecture and format: the others are compared as they are.
    choice = "auto" if architecture == COMPILED else "off"
    settings = load_settings().model_copy(update={"compile": choice})
    return LanguageModel(
        compared_model(placed, WINDOW_TOKENS, settings), Tokenization(tokenizer), architecture
    )


def _outcome(engine: LanguageModel, texts: Sequence[str], exact: Outcome | None) -> Outcome:
    """What an engine gives; with `exact` it samples at that one's positions."""
    found = engine.find_positions(PROMPT, texts, at_most=POSITIONS, threshold=0.0)
    positions = [{position.token: position.probability or 0.0 for position in of_text} for of_text in found]
    tokens = [list(of_text) for of_text in (positions if exact is None else exact.positions)]
    sampler = engine.start_sampling(
        PROMPT, samples=SAMPLES, max_new_tokens=NEW_TOKENS, call_start=" [", temperature=1.0, top_p=1.0
    )
    for number, (text, at) in enumerate(zip(texts, tokens, strict=True)):
        sampler.add(text, at, str(number))
    samples = [
        sample.text for of_text in sampler.finish() for at_position in of_text for sample in at_position
    ]
    placed = [
        (text, [_call(token, number) for number, token in enumerate(at)])
        for text, at in zip(texts, tokens, strict=True)
    ]
    together = _reductions(engine, placed)
    alone = [reduction for one in placed for reduction in _reductions(engine, [one])]
    return Outcome(
        positions=positions,
        samples=samples,
        reductions=together,
        largest_difference_alone=max(abs(own - other) for own, other in zip(together, alone, strict=True)),
    )


def _call(token: int, number: int) -> PlacedCall:
    return PlacedCall(token, Call("Calculator", f"{number + 3} * {token}"), str((number + 3) * token))


def _reductions(engine: LanguageModel, placed: Sequence[tuple[str, list[PlacedCall]]]) -> list[float]:
    scored = engine.score_texts(placed, verify="off")
    return [losses.reduction_bound for of_text in scored for losses in of_text]
