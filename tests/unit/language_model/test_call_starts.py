"""Where a model would begin a call while it reads: the probability and the rank of " [" before each word."""

import pytest

from benchmarks.reference import PlainReference
from toolformer_ops.config import Settings
from toolformer_ops.runs.models import load_model, load_tokenization

TEXTS = ["The shop had 520 shirts and sold 187 of them.", "Today is the first Friday of the year.", "Word"]


def test_probabilities_and_ranks_are_those_of_a_plain_pass(tiny_gpt2_dir):
    model = load_model(Settings(), str(tiny_gpt2_dir))
    reference = PlainReference(tiny_gpt2_dir, load_tokenization(Settings(), str(tiny_gpt2_dir)).start_ids)
    marker = reference.encode(" [")[0]
    for text, starts in zip(TEXTS, model.call_starts(TEXTS), strict=True):
        words = [place for place, letter in enumerate(text) if letter == " "]
        assert [start.position_char for start in starts] == words
        for start in starts:
            before = [*reference.start, *reference.encode(text[: start.position_char])]
            log_p = reference.logits(before)[-1].log_softmax(-1)
            assert start.probability == pytest.approx(float(log_p[marker].exp()), rel=1e-3)
            assert start.rank == int((log_p >= log_p[marker]).sum())
