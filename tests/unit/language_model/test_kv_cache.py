"""Rows that grow, branch, are cut, and take in tokens say what the network says about the same tokens from scratch."""

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from benchmarks import device_twin
from tests.unit.language_model.conftest import Subject
from toolformer_ops.language_model import attention, packing
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedPrompt, CachedText
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.kv_cache import KVCache, read_prompt

TOLERANCE = 1e-3
PROMPT = "The shop had 520 shirts and sold 187 of them, so it has"
OTHER = "Today is the first Friday of the year"
RESULT = " [Calculator(520 - 187) -> 333]"


def plain(subject: Subject, ids: Sequence[int]) -> torch.Tensor:
    """Log probabilities of what follows, by one pass of transformers over all tokens."""
    return subject.reference.logits(ids)[-1].log_softmax(-1).to(subject.model.device)


def ids_of(subject: Subject, text: str) -> list[int]:
    return [*subject.tokenization.start_ids, *subject.tokenization.ids(text)]


def agree(model: CausalModel, hidden: torch.Tensor, expected: torch.Tensor) -> bool:
    found = model.log_probabilities(hidden[None])[0]
    return float((found - expected).abs().max()) <= TOLERANCE * max(1.0, float(expected.abs().max()))


@pytest.fixture(params=["cpu", "cuda", "ranges"])
def either_way(request, any_subject, monkeypatch):
    """Each shape, as on a CPU and as elsewhere: texts together, with fused attention from two tokens on, or attention by ranges.

    The kernel of the last has a stand-in that takes float32 here, so that nothing is rounded on the way.
    """
    if request.param == "ranges":
        monkeypatch.setattr(device_twin, "KERNEL_FORMATS", (torch.float32,))
        for module in (attention, packing):
            monkeypatch.setattr(
                module, "takes_variable_lengths", lambda device, dtype, width, softcap: not softcap
            )
        with device_twin.device_twin() as counts:
            network = copy.deepcopy(any_subject.reference.network).to("cuda")
            yield dataclasses.replace(any_subject, model=compared_model(network, 1024))
        assert (counts.launches["varlen_attn"] > 0) == (type(network).__name__ != "Gemma2ForCausalLM")
        return
    monkeypatch.setattr(any_subject.model, "texts_together", request.param != "cpu")
    monkeypatch.setattr(any_subject.model, "kind", request.param)
    fused_from = BATCH_SIZES[request.param].fused_attention_tokens
    changed = dataclasses.replace(BATCH_SIZES["cpu"], fused_attention_tokens=fused_from)
    monkeypatch.setitem(BATCH_SIZES, "cpu", changed)
    yield any_subject


@torch.inference_mode()
def test_texts_that_step_after_cuts_or_results_equal_the_plain_pass(either_way):
    model = either_way.model
    held = [ids_of(either_way, PROMPT), ids_of(either_way, OTHER), ids_of(either_way, PROMPT)[:1]]
    result = list(either_way.tokenization.continuation(RESULT))
    cache = KVCache(model)
    head = read_prompt(model, held[0][:2])
    cache.join([CachedText(head), CachedText(CachedPrompt()), CachedText(CachedPrompt())], [4, 7, 9])
    states = cache.extend([4, 7, 9], [held[0][2:], *held[1:]])
    assert [agree(model, one[-1], plain(either_way, ids)) for one, ids in zip(states, held, strict=True)] == [
        True
    ] * 3

    def step(tokens: dict[int, int]) -> list[bool]:
        labels = cache.labels
        rows = np.flatnonzero(np.isin(labels, list(tokens)))
        hidden = cache.step(np.array([tokens[label] for label in labels[rows]]), rows)
        found = []
        for label, state in zip(labels[rows], hidden, strict=True):
            of_row = held[[4, 7, 9].index(label)]
            of_row.append(tokens[label])
            found.append(agree(model, state, plain(either_way, of_row)))
        return found

    assert step({4: 5, 7: 6, 9: 8}) + step({4: 9, 9: 3}) == [True] * 5
    cache.cut(4, len(held[0]) - 1)
    del held[0][-1]
    assert step({4: 11, 7: 2}) == [True] * 2
    [state] = cache.extend([4], [result])
    held[0] += result
    assert agree(model, state[-1], plain(either_way, held[0]))
    cache.cut(4, len(held[0]) - 2)  # into what was inserted
    del held[0][-2:]
    assert step({4: 3}) == [True]
    left = np.flatnonzero(cache.labels != 7)
    cache.keep(left, cache.labels[left])
    assert sorted(cache.labels) == [4, 9]
    assert step({4: 6, 9: 7}) == [True] * 2
    assert dict(zip(cache.labels, cache.lengths, strict=True)) == {4: len(held[0]), 9: len(held[2])}
    with pytest.raises(ValueError, match="prompt's 2 tokens"):
        cache.cut(4, 1)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [[1, 2], [0, 2]], ids=["neighbours", "others"])
def test_rows_that_step_while_others_rest_equal_the_plain_pass(either_way, rows):
    model, ids = either_way.model, ids_of(either_way, PROMPT)
    reading = KVCache(model)
    reading.join([CachedText(read_prompt(model, ids[:1]))])
    reading.extend([0], [ids[1:]])
    cache = KVCache(model)
    cache.share([(reading.texts()[0], [4, 4, 9], range(3))])
    cache.step(np.array([5, 6, 7]))
    hidden = cache.step(np.array([8, 9]), np.array(rows))
    written = [[*ids[:4], 5], [*ids[:4], 6], [*ids[:9], 7]]
    for row, token, state in zip(rows, (8, 9), hidden, strict=True):
        assert agree(model, state, plain(either_way, [*written[row], token]))


@torch.inference_mode()
def test_rows_that_branch_or_leave_a_shared_text_equal_the_plain_pass(either_way):
    """Texts join while others grow; rows branch, move to other places, and leave until a text has none."""
    model = either_way.model
    texts = [ids_of(either_way, text) for text in (PROMPT, OTHER, "Of 1400 participants 400 passed.")]
    head = read_prompt(model, texts[0][:1])
    reading = KVCache(model)
    reading.join([CachedText(head)] * 3)
    reading.extend(range(3), [ids[1:] for ids in texts])
    read = reading.texts()
    assert [text.length for text in read] == [len(ids) - 1 for ids in texts]
    cache = KVCache(model)
    cache.share([(read[0], [4, 9], [0, 1]), (read[1], [3, len(texts[1])], [2, 3])])
    held = {0: texts[0][:4], 1: texts[0][:9], 2: texts[1][:3], 3: list(texts[1])}

    def step(*, is_compared: bool = True) -> bool:
        labels = cache.labels.tolist()
        tokens = [(7 * label + 3 * len(held[label])) % 200 for label in labels]
        hidden = cache.step(np.array(tokens))
        for label, token in zip(labels, tokens, strict=True):
            held[label] = [*held[label], token]
        return not is_compared or all(
            agree(model, one, plain(either_way, held[label]))
            for one, label in zip(hidden, labels, strict=True)
        )

    def keep(*wanted: int) -> None:
        labels = cache.labels.tolist()
        parents = sorted(labels.index(label) for label in wanted)
        before = dict(held)
        held.clear()
        held.update({100 + number: before[labels[parent]] for number, parent in enumerate(parents)})
        cache.keep(np.array(parents), 100 + np.arange(len(parents)))

    assert step()
    keep(0, 0, 0, 1, 2, 3, 3)
    assert step()
    cache.share([(read[2], [5], [50])])
    held[50] = texts[2][:5]
    assert step()
    assert step()
    keep(100, 102, 102, 103, 105, 50, 50, 50)
    assert step()
    keep(
        *[label for label in cache.labels.tolist() if held[label][:9] == texts[0][:9]],
        *cache.labels.tolist()[-2:],
    )
    for number in range(28):  # own tokens beyond the first capacity, and beyond the windows of 24
        assert step(is_compared=number % 9 == 0)  # each reads what those before it wrote
    keep(int(cache.labels[-1]))
    assert step()
