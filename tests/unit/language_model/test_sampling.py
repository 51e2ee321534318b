"""How a sample ends, and that it depends on nothing but its own random numbers."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.tiny_models import save_tiny
from tests.unit.language_model.conftest import (
    LONG_TEXT,
    PROMPT,
    SAMPLING,
    TEXT,
    Subject,
    TextToSample,
    find_all,
    passes_over,
    sample_calls,
)
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import LanguageModel, sampling
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.memory import HELD_TO_DRAW, DeviceMemory
from toolformer_ops.language_model.models.loading import load_network
from toolformer_ops.language_model.packing import ROW_MULTIPLE
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import CallPosition, SampledContinuation


def sample(
    engine: LanguageModel, positions: list[CallPosition], text: str = TEXT, seed_key: str = "0", **changed: Any
) -> list[list[SampledContinuation]]:
    [found] = sample_calls(engine, [TextToSample(text, positions, seed_key)], **changed)
    return found


@pytest.fixture
def positions(subject: Subject) -> list[CallPosition]:
    return find_all(subject.engine, TEXT, at_most=6)[0]


ONE = [CallPosition(3, 8, 0.5)]


@pytest.fixture(scope="module")
def saying(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[SampledContinuation]]:
    """The samples of a model that nearly always writes one given token."""
    folder = save_tiny("gptj", tmp_path_factory.mktemp("saying") / "gptj")
    network, tokenizer, identity = load_network(str(folder), None, "float32", "cpu", 1)
    engine = LanguageModel(CausalModel(network, tokenizer.model_max_length), Tokenization(tokenizer), identity)

    def samples(token: str, **changed: Any) -> list[SampledContinuation]:
        with torch.inference_mode():
            before = network.lm_head.bias.clone()
            network.lm_head.bias[tokenizer.convert_tokens_to_ids(token)] += 1000.0
            try:
                [found] = sample(engine, ONE, **{"samples": 1} | changed)
            finally:
                network.lm_head.bias.copy_(before)
        return found

    return samples


@pytest.mark.parametrize(
    ("token", "settings", "found"),
    [
        (")]", {}, [SampledContinuation(")", True)]),  # a token that holds more than the bracket ends a call
        ("x", {"samples": 2, "max_new_tokens": 5}, [SampledContinuation("xxxxx", False)] * 2),  # its budget
        ("<|endoftext|>", {}, [SampledContinuation("", False)]),
        ("\u0120->", {"max_new_tokens": 3}, [SampledContinuation(" -> -> ->", False)]),
        ("\u0120->", {"until_arrow": True}, [SampledContinuation(" ", True)]),  # at the arrow, and without it
        (")]", {"until_arrow": True}, [SampledContinuation(")", True)]),
        # The end of a given start may be written as a longer token.
        ("()", {"max_new_tokens": 2, "call_start": " [Calendar("}, [SampledContinuation("Calendar()()", False)]),
    ],
)
def test_a_sample_ends_at_a_bracket_or_an_arrow_at_the_end_of_the_document_or_with_its_budget(
    saying: Callable[..., list[SampledContinuation]],
    token: str,
    settings: dict[str, Any],
    found: list[SampledContinuation],
) -> None:
    assert saying(token, **settings) == found


@pytest.mark.parametrize(
    ("token", "call_start", "finished", "end"),
    [(")]", " [Calculator(", True, ")"), ("x", " [Calendar(", False, "xx")],
)
def test_the_start_of_a_call_is_never_rewritten(
    saying: Callable[..., list[SampledContinuation]], token: str, call_start: str, finished: bool, end: str
) -> None:
    [found] = saying(token, max_new_tokens=3, call_start=call_start)
    assert found.finished is finished
    assert found.text.startswith(call_start.removeprefix(" ["))
    assert found.text.endswith(end)


def test_each_position_has_its_samples_in_order_which_depend_on_nothing_that_is_sampled_with_them_or_before(
    subject: Subject, positions: list[CallPosition]
) -> None:
    together = sample(subject.engine, positions)
    assert [len(samples) for samples in together] == [4] * 6
    assert sample(subject.engine, []) == []
    for item, samples in zip(positions, together, strict=True):
        assert sample(subject.engine, [item]) == [samples]
        assert sample(subject.engine, [item], samples=1) == [samples[:1]]
    sample(subject.engine, [CallPosition(2, 7, 0.5)], text="Another text, with words.")
    assert sample(subject.engine, positions[::-1]) == together[::-1]
    assert sample(subject.engine, positions, seed_key="1") != together


def test_with_a_tiny_top_p_all_samples_are_the_most_likely_one(subject: Subject, positions: list[CallPosition]) -> None:
    for samples in sample(subject.engine, positions, top_p=1e-6):
        assert len(set(samples)) == 1


def test_samples_in_a_text_longer_than_the_window_are_given_for_every_position(long_subject: Subject) -> None:
    positions = find_all(long_subject.engine, LONG_TEXT)[0][::40]
    together = sample(long_subject.engine, positions, text=LONG_TEXT)
    assert [sample(long_subject.engine, [item], text=LONG_TEXT)[0] for item in positions] == together


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"call_start": "Calculator("}, "expected"),
        ({"call_start": " [x]"}, "expected"),
        ({"samples": 0}, "expected"),
        ({"temperature": 0.0}, "expected"),
        ({"top_p": 0.0}, "expected"),
        ({"max_new_tokens": 250}, r"window of 256 tokens, found \d+\. Lower the call length"),
    ],
)
def test_settings_that_cannot_be_sampled_with_are_refused(
    long_subject: Subject, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        sample(long_subject.engine, ONE, **changed)


TOGETHER = [
    TEXT,
    "Metropolis is a film by Fritz Lang. It was made in 1927, and it runs for 153 minutes.",
    "Of 1400 participants 400, or 29 %, passed the test.",
    "El gato se sienta en la mesa.",
    "On Friday we meet.",
]


def tokens_read(passes: list[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in passes)


def to_sample(engine: LanguageModel, positions: int = 5) -> list[TextToSample]:
    return [
        TextToSample(text, find_all(engine, text, at_most=positions)[0], str(number))
        for number, text in enumerate(TOGETHER)
    ]


@pytest.mark.parametrize(
    ("shape", "tokens", "call_start"),
    [
        ("llama", 1, " ["),
        ("llama", 6000, " [Calculator("),
        ("gpt2", 1, " [Calculator("),
        ("gpt2", 6000, " ["),
        ("gptj", 400, " ["),
        ("gptj", 6000, " [Calculator("),
        ("gemma", 1, " ["),
        ("gemma", 400, " [Calculator("),
        ("mistral", 400, " ["),
        ("mistral", 6000, " [Calculator("),
    ],
)
def test_a_text_gives_the_same_samples_whatever_texts_grow_beside_it(
    subject_of: Callable[..., Subject], shape: str, tokens: int, call_start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for one position at a time, for a few, and for all texts at once: two of the three for every shape, and both starts.

    One position at a time takes longest: it is tried with rotary and with learned positions, and with a layer that forgets; two
    positions a text are enough for it.
    """
    engine = subject_of(shape).engine
    monkeypatch.setattr(DeviceMemory, "cached_tokens", tokens)
    texts = to_sample(engine, 2 if tokens == 1 else 5)
    together = sample_calls(engine, texts, call_start=call_start)
    assert [sample_calls(engine, [item], call_start=call_start)[0] for item in texts] == together
    assert sample_calls(engine, texts[::-1], call_start=call_start) == together[::-1]


def test_texts_may_be_added_while_the_positions_of_others_are_found(subject: Subject) -> None:
    engine = subject.engine
    together = sample_calls(engine, to_sample(engine))
    engine.forget_texts()
    sampler = engine.start_sampling(PROMPT, **SAMPLING)
    for number, text in enumerate(TOGETHER):
        [positions] = find_all(engine, text, at_most=5)
        sampler.add(text, [position.token for position in positions], str(number))
    assert sampler.finish() == together


def test_the_contexts_of_the_last_texts_are_used_again(subject: Subject) -> None:
    engine, network = subject.engine, subject.model.network
    to_sample(engine)  # the prompt is read once, and kept
    engine.forget_texts()
    with passes_over(network) as finding:
        texts = to_sample(engine)
    with passes_over(network) as kept:
        sample_calls(engine, texts)
    engine.forget_texts()
    with passes_over(network) as forgotten:
        sample_calls(engine, texts)
    assert tokens_read(forgotten) - tokens_read(kept) == tokens_read(finding) > 0


def test_equal_samples_of_a_position_are_one_row(subject: Subject) -> None:
    """At a low temperature nearly all samples are equal: a pass then has hardly more rows than there are positions."""
    texts = to_sample(subject.engine)[:2]
    with passes_over(subject.model.network) as passes:  # the texts' contexts are kept: each pass is one token a row
        together = sample_calls(subject.engine, texts, temperature=0.01, samples=6)
    positions = sum(len(text.positions) for text in texts)
    distinct = sum(len({sample.text for sample in samples}) for text in together for samples in text)
    rows = max(sequences * tokens for sequences, tokens in passes)  # filled up to a multiple of `ROW_MULTIPLE`
    assert positions <= rows < distinct + ROW_MULTIPLE < 6 * positions
    for number in (0, 5):  # a sample is the same with fewer beside it
        alone = sample_calls(subject.engine, texts, temperature=0.01, samples=number + 1)
        assert [[samples[number] for samples in text] for text in alone] == [
            [samples[number] for samples in text] for text in together
        ]


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_where_memory_is_short_while_tokens_are_drawn_the_rows_are_halved_and_the_draws_are_the_same(
    subject: Subject, positions: list[CallPosition], top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sample(subject.engine, positions, top_p=top_p)
    seen: list[int] = []
    plain = sampling.cumulative_probabilities

    def short(log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(len(log_probs))
        if len(log_probs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(log_probs, *rest)

    monkeypatch.setattr(sampling, "cumulative_probabilities", short)
    monkeypatch.setattr(subject.model, "memory", DeviceMemory(subject.model.network))  # whose budgets shrink
    assert sample(subject.engine, positions, top_p=top_p) == expected
    assert max(seen) > 2
    assert 2 in seen


@pytest.mark.parametrize(("top_p", "bytes_an_entry"), [(1.0, 16), (0.9, 25)])
def test_what_is_held_while_a_token_is_drawn_is_what_the_budget_says(top_p: float, bytes_an_entry: int) -> None:
    log_probs = torch.randn(8, 50_000).log_softmax(dim=-1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        sampling.cumulative_probabilities(log_probs, 0.7, top_p)
    changes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    most = log_probs.nbytes + max(itertools.accumulate(changes))
    assert most / log_probs.numel() == pytest.approx(bytes_an_entry, abs=0.1)
    assert bytes_an_entry <= HELD_TO_DRAW
