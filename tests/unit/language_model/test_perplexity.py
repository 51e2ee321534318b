"""Whole texts with calls disabled: equal to a plain computation token by token, and to cases that are worked by hand."""

import math
from pathlib import Path

import pytest
from transformers import GPT2Config

from tests.tiny_models import save_tiny_model, token_ids, train_tokenizer
from tests.unit.language_model.conftest import TEXT, Subject
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.perplexity import TextLoss, _call_could_start

WITH_MARKERS = "The name of the film [or book] is [unknown], so it has 333 left."


def plain_nats(subject: Subject, text: str, *, room: int, stride: int) -> list[float]:
    """Nats of each token, one forward pass a token, by the description: the window that first reaches it."""
    reference = subject.reference
    ids = reference.encode(text)
    (marker,) = reference.encode(" [")
    nats = []
    end = min(room, len(ids))
    for token in range(len(ids)):
        while token >= end:
            end = min(end + stride, len(ids))
        start = max(0, end - room)
        logits = reference.logits([*reference.start, *ids[start:token]])[-1].double()
        probabilities = logits.softmax(-1)
        p = float(probabilities[ids[token]])
        if ids[token] != marker:
            p /= float(probabilities.sum() - probabilities[marker])
        nats.append(-math.log(p))
    return nats


def test_every_shape_agrees_with_one_pass_a_token(any_subject: Subject) -> None:
    texts = [TEXT, WITH_MARKERS, "The"]
    found = any_subject.engine.text_losses(texts)
    for text, loss in zip(texts, found, strict=True):
        nats = plain_nats(any_subject, text, room=1023, stride=511)
        assert loss.tokens == len(nats)
        assert loss.nats == pytest.approx(sum(nats), rel=2e-4)
        assert loss.utf8_bytes == len(text.encode())


@pytest.mark.parametrize("stride", [1, 127, 255])
def test_a_text_longer_than_the_window_is_scored_once_a_token(long_subject: Subject, stride: int) -> None:
    text = " ".join([TEXT] * 9)
    ids = long_subject.reference.encode(text)
    assert len(ids) > 255
    some = text if stride > 1 else long_subject.reference.tokenizer.decode(ids[:259])
    (loss,) = long_subject.engine.text_losses([some], stride=None if stride == 127 else stride)  # half a window
    for beyond in (0, 10_000):
        with pytest.raises(ValueError, match="stride of 1 to 255 tokens"):
            long_subject.engine.text_losses([some], stride=beyond)
    nats = plain_nats(long_subject, some, room=255, stride=stride)
    assert loss.tokens == len(nats)
    assert loss.nats == pytest.approx(sum(nats), rel=2e-4)


def test_a_model_that_finds_every_token_equally_likely_has_losses_that_are_worked_on_paper(tmp_path: Path) -> None:
    tokenizer = train_tokenizer()
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=64, **token_ids(tokenizer))
    model = LanguageModel.load(str(save_tiny_model(tmp_path / "gpt2", config, tokenizer, scale=0.0)))
    tokens, size = len(tokenizer(WITH_MARKERS)["input_ids"]), len(tokenizer)
    # " [" stands twice in this text: there its own probability counts, 1 in `size`; elsewhere 1 in size - 1.
    nats = (tokens - 2) * math.log(size - 1) + 2 * math.log(size)
    [loss, empty, euro] = model.text_losses([WITH_MARKERS, "", "é€"])
    assert loss == TextLoss(pytest.approx(nats, rel=1e-6), tokens, len(WITH_MARKERS.encode()))
    assert empty == TextLoss(0.0, 0, 0)
    assert euro.utf8_bytes == 5  # 2 and 3


def test_a_marker_of_several_tokens_is_disabled_only_behind_its_first_ones() -> None:
    assert _call_could_start((5, 9), (1, 5, 9), 2)
    assert not _call_could_start((5, 9), (1, 6, 9), 2)
    assert not _call_could_start((5, 9), (9,), 0)
    assert _call_could_start((9,), (1,), 0)
