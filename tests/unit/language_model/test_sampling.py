"""How a sample ends, and that it depends on nothing but its own random numbers."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_models import save_tiny, train_tokenizer
from tests.unit.language_model.conftest import PROMPT, TEXT, Subject, TextToSample, passes_over, sample_calls
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import LanguageModel, sampling
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.context import ContextBuilder
from toolformer_ops.language_model.memory import HELD_TO_DRAW, DeviceMemory
from toolformer_ops.language_model.packing import ROW_MULTIPLE
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.models.loading import load_network
from toolformer_ops.records import CallPosition, SampledContinuation

SETTINGS: dict[str, Any] = {
    "samples": 4,
    "max_new_tokens": 10,
    "call_start": " [",
    "temperature": 1.0,
    "top_p": 1.0,
    "seed_key": "0",
}


def sample(engine: LanguageModel, positions: list[CallPosition], text: str = TEXT, **changed: Any) -> Any:
    settings = SETTINGS | changed
    item = TextToSample(text, tuple(positions), settings.pop("seed_key"))
    return sample_calls(engine, [item], **settings)[0]


@pytest.fixture
def positions(subject: Subject) -> list[CallPosition]:
    return subject.engine.find_positions(PROMPT, [TEXT], at_most=6, threshold=0.0)[0]


@pytest.fixture(scope="module")
def saying(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LanguageModel]:
    """A model that nearly always writes one given token."""
    folder = save_tiny("gptj", tmp_path_factory.mktemp("saying") / "gptj")

    def build(token: str) -> LanguageModel:
        network, tokenizer, identity = load_network(str(folder), None, "float32", "cpu", 1)
        with torch.inference_mode():
            network.lm_head.bias[tokenizer.convert_tokens_to_ids(token)] += 1000.0
        return LanguageModel(CausalModel(network, tokenizer.model_max_length), Tokenization(tokenizer), identity)

    return build


ONE = [CallPosition(3, 8, 0.5)]


def test_a_token_that_holds_more_than_the_bracket_ends_a_call(saying: Callable[[str], LanguageModel]) -> None:
    engine = saying(")]")
    assert sample(engine, ONE, samples=1) == [[SampledContinuation(")", True)]]
    ((named,),) = sample(engine, ONE, samples=1, call_start=" [Calculator(")
    assert named.finished
    assert named.text.startswith("Calculator(")
    assert named.text.endswith(")")


def test_the_end_of_a_given_start_may_be_written_as_a_longer_token(saying: Callable[[str], LanguageModel]) -> None:
    tokenization = Tokenization(train_tokenizer())
    given = tokenization.call_start(" [Calendar(")
    assert tokenization.decode(given.ids) == " [Calendar"
    written = {tokenization.decode([token]) for token in given.first_tokens or ()}
    assert {"(", "()"} <= written
    assert all(text.startswith("(") for text in written)
    (found,) = sample(saying("()"), ONE, samples=1, max_new_tokens=2, call_start=" [Calendar(")
    assert found == [SampledContinuation("Calendar()()", False)]


def test_the_start_of_a_call_is_never_rewritten(saying: Callable[[str], LanguageModel]) -> None:
    (found,) = sample(saying("x"), ONE, samples=1, max_new_tokens=3, call_start=" [Calendar(")
    assert found[0].text.startswith("Calendar(")
    assert found[0].text.endswith("xx")


def test_a_sample_without_an_end_is_unfinished_and_as_long_as_its_budget(
    saying: Callable[[str], LanguageModel],
) -> None:
    assert sample(saying("x"), ONE, samples=2, max_new_tokens=5) == [[SampledContinuation("xxxxx", False)] * 2]


def test_the_end_of_the_document_ends_a_sample_unfinished(saying: Callable[[str], LanguageModel]) -> None:
    assert sample(saying("<|endoftext|>"), ONE, samples=1) == [[SampledContinuation("", False)]]


def test_each_position_has_its_number_of_samples_in_order(subject: Subject, positions: list[CallPosition]) -> None:
    assert [len(samples) for samples in sample(subject.engine, positions)] == [4] * 6
    assert sample(subject.engine, []) == []


def test_a_sample_does_not_depend_on_what_it_is_sampled_with(subject: Subject, positions: list[CallPosition]) -> None:
    together = sample(subject.engine, positions)
    for item, samples in zip(positions, together, strict=True):
        assert sample(subject.engine, [item]) == [samples]
        assert sample(subject.engine, [item], samples=1) == [samples[:1]]
    assert sample(subject.engine, positions[::-1]) == together[::-1]


def test_many_positions_are_sampled_in_parts_with_the_same_result(
    subject: Subject, positions: list[CallPosition], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = sample(subject.engine, positions)
    monkeypatch.setattr(DeviceMemory, "cached_tokens", 130)
    assert sample(subject.engine, positions) == together


def test_samples_come_again_with_the_same_key_and_differ_with_another(
    subject: Subject, positions: list[CallPosition]
) -> None:
    first = sample(subject.engine, positions)
    sample(subject.engine, [CallPosition(2, 7, 0.5)], text="Another text, with words.")
    assert sample(subject.engine, positions) == first
    assert sample(subject.engine, positions, seed_key="1") != first


def test_with_a_tiny_top_p_all_samples_are_the_most_likely_one(subject: Subject, positions: list[CallPosition]) -> None:
    for samples in sample(subject.engine, positions, top_p=1e-6):
        assert len(set(samples)) == 1


def test_the_token_just_before_the_call_is_part_of_what_the_model_sees(subject: Subject) -> None:
    tokens = subject.engine.tokenize(TEXT)
    last = len(tokens) - 1
    probability = subject.reference.probability(PROMPT.template, TEXT, last)
    with torch.inference_mode():
        contexts = ContextBuilder(subject.model, subject.tokenization)
        context = contexts.context(PROMPT, tokens, contexts.windows(PROMPT, tokens)[0])
        found = subject.model.log_probabilities(context.before(last)[None])[0].exp()
    assert float(found[subject.tokenization.marker_ids[0]]) == pytest.approx(probability, rel=1e-3)


def test_samples_in_a_text_longer_than_the_window_are_given_for_every_position(long_subject: Subject) -> None:
    text = " ".join(f"Shop {number} sold {number * 7} shirts." for number in range(60))
    positions = long_subject.engine.find_positions(PROMPT, [text], at_most=10_000, threshold=0.0)[0][::40]
    together = sample(long_subject.engine, positions, text=text)
    assert [sample(long_subject.engine, [item], text=text)[0] for item in positions] == together


def test_a_call_budget_that_the_window_cannot_hold_is_refused(long_subject: Subject) -> None:
    positions = long_subject.engine.find_positions(PROMPT, [TEXT], at_most=1, threshold=0.0)[0]
    with pytest.raises(ModelError, match=r"window of 256 tokens, found \d+\. Lower the call length"):
        sample(long_subject.engine, positions, max_new_tokens=250)


@pytest.mark.parametrize(
    "changed",
    [{"call_start": "Calculator("}, {"call_start": " [x]"}, {"samples": 0}, {"temperature": 0.0}, {"top_p": 0.0}],
)
def test_settings_that_cannot_be_sampled_with_are_refused(tiny_engine: LanguageModel, changed: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="expected"):
        sample(tiny_engine, ONE, **changed)


def test_the_network_is_loaded_from_a_path_object_as_well(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found no"):
        LanguageModel.load(str(tmp_path))


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
        TextToSample(
            text, tuple(engine.find_positions(PROMPT, [text], at_most=positions, threshold=0.0)[0]), str(number)
        )
        for number, text in enumerate(TOGETHER)
    ]


@pytest.mark.parametrize(
    ("shape", "tokens", "call_start"),
    [
        ("llama", 1, " ["),
        ("llama", 400, " [Calculator("),
        ("llama", 6000, " ["),
        ("gpt2", 1, " [Calculator("),
        ("gpt2", 6000, " ["),
        ("gptj", 400, " ["),
        ("gptj", 6000, " [Calculator("),
        ("gemma", 1, " ["),
        ("gemma", 400, " [Calculator("),
        ("gemma", 6000, " [Calculator("),
        ("mistral", 400, " ["),
        ("mistral", 6000, " [Calculator("),
    ],
)
def test_a_text_gives_the_same_samples_whatever_texts_grow_beside_it(
    subject_of: Callable[..., Subject], shape: str, tokens: int, call_start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for one position at a time, for a few, and for all texts at once.

    Every shape has two of the three at least, and both starts. One position at a time takes longest: it is tried with rotary and
    with learned positions, and with a layer that forgets; two positions a text are enough for it.
    """
    engine = subject_of(shape).engine
    monkeypatch.setattr(DeviceMemory, "cached_tokens", tokens)
    settings: dict[str, Any] = {key: value for key, value in SETTINGS.items() if key != "seed_key"}
    settings["call_start"] = call_start
    texts = to_sample(engine, 2 if tokens == 1 else 5)
    together = sample_calls(engine, texts, **settings)
    assert [sample_calls(engine, [item], **settings)[0] for item in texts] == together
    assert sample_calls(engine, texts[::-1], **settings) == together[::-1]


def test_texts_may_be_added_while_the_positions_of_others_are_found(subject: Subject) -> None:
    engine = subject.engine
    settings: dict[str, Any] = {key: value for key, value in SETTINGS.items() if key != "seed_key"}
    together = sample_calls(engine, to_sample(engine), **settings)
    engine.forget_texts()
    sampler = engine.start_sampling(PROMPT, **settings)
    for number, text in enumerate(TOGETHER):
        [positions] = engine.find_positions(PROMPT, [text], at_most=5, threshold=0.0)
        sampler.add(text, [position.token for position in positions], str(number))
    assert sampler.finish() == together


def test_the_contexts_of_the_last_texts_are_used_again(subject: Subject) -> None:
    engine, network = subject.engine, subject.model.network
    settings: dict[str, Any] = {key: value for key, value in SETTINGS.items() if key != "seed_key"}
    to_sample(engine)  # the prompt is read once, and kept
    engine.forget_texts()
    with passes_over(network) as finding:
        texts = to_sample(engine)
    with passes_over(network) as kept:
        sample_calls(engine, texts, **settings)
    engine.forget_texts()
    with passes_over(network) as forgotten:
        sample_calls(engine, texts, **settings)
    assert tokens_read(forgotten) - tokens_read(kept) == tokens_read(finding) > 0


def test_equal_samples_of_a_position_are_one_row(subject: Subject) -> None:
    """At a low temperature nearly all samples are equal: a pass then has hardly more rows than there are positions."""
    settings: dict[str, Any] = {key: value for key, value in SETTINGS.items() if key != "seed_key"}
    settings |= {"temperature": 0.01, "samples": 6}
    texts = to_sample(subject.engine)[:2]
    with passes_over(subject.model.network) as passes:  # the texts' contexts are kept: each pass is one token a row
        together = sample_calls(subject.engine, texts, **settings)
    positions = sum(len(text.positions) for text in texts)
    distinct = sum(len({sample.text for sample in samples}) for text in together for samples in text)
    rows = max(sequences * tokens for sequences, tokens in passes)  # filled up to a multiple of `ROW_MULTIPLE`
    assert positions <= rows < distinct + ROW_MULTIPLE < 6 * positions
    for number in (0, 5):  # a sample is the same with fewer beside it
        alone = sample_calls(subject.engine, texts, **settings | {"samples": number + 1})
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


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_of_the_most_likely_tokens_those_count_that_are_needed_to_reach_top_p(temperature: float) -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.3, 0.2], [math.nan] * 4])
    given = probabilities.log() * temperature
    before = given.clone()
    found = sampling.cumulative_probabilities(given, temperature, 0.75)
    assert torch.allclose(found[0], torch.tensor([0.0, 0.4, 0.7, 0.9], dtype=torch.float64))  # 0.4 + 0.3 is not enough
    assert found[1].isnan().all(), "no distribution"
    assert torch.equal(given[0], before[0])
