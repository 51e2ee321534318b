"""How a token is drawn and a sample ends, and that it depends on nothing but its own random numbers."""

import hashlib
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tiny_models import save_tiny
from tests.unit.language_model.conftest import (
    LONG_TEXT,
    PROMPT,
    SAMPLING,
    TEXT,
    TextToSample,
    find_all,
    passes_over,
    sample_calls,
)
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.devices import DeviceMemory
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models.loading import load_network
from toolformer_ops.language_model.sampling import cumulative_probabilities, draw, only, uniforms
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import CallPosition, SampledContinuation


def sample(
    engine: LanguageModel,
    positions: list[CallPosition],
    text: str = TEXT,
    seed_key: str = "0",
    **changed: Any,
) -> list[list[SampledContinuation]]:
    [found] = sample_calls(engine, [TextToSample(text, positions, seed_key)], **changed)
    return found


@pytest.fixture
def positions(subject):
    return find_all(subject.engine, TEXT, at_most=3)[0]


ONE = [CallPosition(3, 8, 0.5)]


@pytest.fixture(scope="module")
def saying(tmp_path_factory):
    """The samples of a model that nearly always writes one given token."""
    folder = save_tiny("gptj", tmp_path_factory.mktemp("saying") / "gptj")
    network, tokenizer, identity = load_network(str(folder), None, "float32", "cpu", 1)
    engine = LanguageModel(
        compared_model(network, tokenizer.model_max_length), Tokenization(tokenizer), identity
    )

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
        (
            "()",
            {"max_new_tokens": 2, "call_start": " [Calendar("},
            [SampledContinuation("Calendar()()", False)],
        ),
    ],
)
def test_a_sample_ends_at_a_bracket_or_an_arrow_at_the_end_of_the_document_or_with_its_budget(
    saying, token, settings, found
):
    assert saying(token, **settings) == found


def test_each_position_has_its_samples_in_order_which_depend_on_nothing_that_is_sampled_with_them_or_before(
    subject, positions
):
    together = sample(subject.engine, positions)
    assert [len(samples) for samples in together] == [4] * 3
    assert sample(subject.engine, []) == []
    for item, samples in zip(positions, together, strict=True):
        assert sample(subject.engine, [item]) == [samples]
        assert sample(subject.engine, [item], samples=1) == [samples[:1]]
    assert sample(subject.engine, positions[::-1]) == together[::-1]
    assert sample(subject.engine, positions, seed_key="1") != together


def test_a_position_of_a_later_window_has_the_same_samples_alone(long_subject):
    positions = find_all(long_subject.engine, LONG_TEXT)[0][::50]
    together = sample(long_subject.engine, positions, text=LONG_TEXT)
    assert sample(long_subject.engine, positions[-1:], text=LONG_TEXT) == together[-1:]


def test_settings_that_cannot_be_sampled_with_are_refused(long_subject):
    refused: list[dict[str, Any]] = [{"call_start": "Calculator("}, {"call_start": " [x]"}, {"samples": 0}]
    refused += [{"temperature": 0.0}, {"top_p": 0.0}, {"max_new_tokens": 250}]  # of a window of 256
    for changed in refused:
        with pytest.raises(ModelError, match="expected"):
            sample(long_subject.engine, ONE, **changed)


TOGETHER = [
    TEXT,
    "Metropolis is a film by Fritz Lang. It was made in 1927, and it runs for 153 minutes.",
    "Of 1400 participants 400, or 29 %, passed the test.",
    "El gato se sienta en la mesa.",
    "On Friday we meet.",
]


def to_sample(engine: LanguageModel, positions: int = 5) -> list[TextToSample]:
    return [
        TextToSample(text, find_all(engine, text, at_most=positions)[0], str(number))
        for number, text in enumerate(TOGETHER)
    ]


@pytest.mark.parametrize(
    ("shape", "tokens", "call_start"),
    [
        (
            "llama",
            1,
            " [",
        ),  # room for one position at a time, which takes longest: two positions a text are enough
        ("gpt2", 6000, " [Calculator("),
        ("gptj", 400, " ["),
        ("gemma", 400, " [Calculator("),
        ("mistral", 6000, " ["),
    ],
)
def test_a_text_gives_the_same_samples_whatever_texts_grow_beside_it(
    subject_of, shape, tokens, call_start, monkeypatch
):
    engine = subject_of(shape).engine
    monkeypatch.setattr(DeviceMemory, "cached_tokens", tokens)
    texts = to_sample(engine, 2 if tokens == 1 else 5)
    together = sample_calls(engine, texts, call_start=call_start)
    assert [sample_calls(engine, [item], call_start=call_start)[0] for item in texts] == together
    assert sample_calls(engine, texts[::-1], call_start=call_start) == together[::-1]


def test_the_contexts_of_the_last_texts_are_used_again(subject):
    engine, network = subject.engine, subject.model.network
    to_sample(engine)  # the prompt is read once, and kept
    engine.forget_texts()
    with passes_over(network) as finding:
        texts = to_sample(engine)
    with passes_over(network) as kept:
        together = sample_calls(engine, texts)
    engine.forget_texts()
    with passes_over(network) as forgotten:
        assert sample_calls(engine, texts) == together
    of_finding, with_contexts, without = (
        sum(map(math.prod, passes)) for passes in (finding, kept, forgotten)
    )
    assert without - with_contexts == of_finding > 0


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def drawn(cumulative: torch.Tensor, *uniforms: float) -> list[int]:
    return draw(cumulative, torch.tensor([uniforms], dtype=torch.float64))[0].tolist()


def test_a_token_of_probability_0_is_never_drawn():
    logits = logs(0.0, 1.0, 0.0)
    assert drawn(cumulative_probabilities(logits, 1.0, 1.0), 0.0, 0.5, 1.0 - 2.0**-53) == [1, 1, 1]


def test_drawing_writes_nothing_to_its_logits():
    logits = logs(0.0, 1.0, 0.0)
    cumulative_probabilities(logits, 1.0, 1.0)
    assert torch.equal(logits, logs(0.0, 1.0, 0.0))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    st.sampled_from([1, 2]),
    st.integers(1, 40),
    st.integers(0, 999),
)
def test_a_draw_is_that_of_a_plain_inversion(weights, power, top, number):
    shares = [weight**power / sum(one**power for one in weights) for weight in weights]
    likeliest = sorted(range(len(shares)), key=lambda token: -shares[token])
    before = dict(
        zip(likeliest, itertools.accumulate((shares[token] for token in likeliest), initial=0), strict=False)
    )
    kept = [share if before[token] < top / 40 else 0.0 for token, share in enumerate(shares)]
    target = (number + 0.5) / 1000 * sum(kept)
    sums = list(itertools.accumulate(kept))
    assume(
        top == 40 or all(abs(one - top / 40) > 1e-5 for one in before.values())
    )  # where rounding decides nothing
    assume(all(abs(one - target) > 1e-5 for one in sums))
    expected = next(token for token, reached in enumerate(sums) if reached > target)
    log_probs = logs(*(weight / sum(weights) for weight in weights))
    assert drawn(cumulative_probabilities(log_probs, 1 / power, top / 40), (number + 0.5) / 1000) == [
        expected
    ]


def test_a_distribution_given_that_the_token_is_one_of_some():
    assert only(logs(0.1, 0.4, 0.2, 0.3), (0, 3)).exp()[0].tolist() == pytest.approx([0.25, 0.0, 0.0, 0.75])


def test_a_row_without_a_distribution_gives_no_token():
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.75)):
        found = cumulative_probabilities(torch.tensor([[math.nan, 0.0]]), temperature, top_p)
        assert drawn(found, 0.5) == [-1]


def test_random_numbers_do_not_depend_on_how_many_are_drawn():
    numbers = uniforms("seed", 3, 0, 5)
    assert numbers.tolist() == uniforms("seed", 3, 0, 5).tolist()
    assert numbers[:2].tolist() == uniforms("seed", 3, 0, 2).tolist()


def test_a_random_number_is_the_hash_of_key_position_sample_with_its_step():
    numbers = uniforms("seed", 3, 0, 5)
    digest = hashlib.sha256(b"seed\x003\x000\x004").digest()
    assert numbers[4] == (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53


def test_another_key_position_or_sample_has_other_random_numbers():
    others = {
        uniforms(*key, 1)[0] for key in (("seed", 3, 0), ("other", 3, 0), ("seed", 4, 0), ("seed", 3, 1))
    }
    assert len(others | set(uniforms("seed", 3, 0, 5))) == 8


@pytest.mark.parametrize(("together", "columns"), [(False, 5 + 2 + 2), (True, 3 * 5)])
def test_texts_that_are_attended_to_together_take_columns_to_the_longest(
    subject, monkeypatch, together, columns
):
    monkeypatch.setattr(subject.model, "texts_together", together)
    assert subject.engine.start_sampling(PROMPT, **SAMPLING)._text_columns([5, 2, 2]) == columns
