"""The attention of a network's layers is that of the pass which is under way."""

import copy
import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from toolformer_ops.language_model.attention import has_mixed_products, product_in_float32
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.packing import Heads

IDS = np.array([5, 6, 7])


class Zeros:
    """A part that attends to nothing, and remembers what its layers were asked."""

    def __init__(self, tokens: int, waiting: Sequence[threading.Barrier] = ()) -> None:
        self.tokens = tokens
        self.positions = np.arange(tokens)
        self.layers: list[int] = []
        self._waiting = waiting

    def attend(
        self, layer: int, heads: Heads, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        assert len(heads.queries) == len(heads.keys) == self.tokens
        for barrier in self._waiting:
            barrier.wait(60)
        self.layers.append(layer)
        return torch.zeros_like(heads.queries)


@torch.inference_mode()
def test_each_part_attends_once_in_each_layer(any_subject):
    parts = [Zeros(2), Zeros(1)]
    any_subject.model.run(IDS, parts)
    assert [part.layers for part in parts] == [[0, 1], [0, 1]]


@torch.inference_mode()
def test_a_network_that_is_taken_over_has_no_pass_of_its_own(any_subject):
    with pytest.raises(RuntimeError, match="expected a pass of the engine"):
        any_subject.model.network(input_ids=torch.tensor([IDS.tolist()]))


def test_two_networks_in_two_threads_attend_by_their_own_parts(any_subject):
    other = compared_model(copy.deepcopy(any_subject.reference.network), 1024)
    together = [threading.Barrier(2)]  # each layer of the one waits for that of the other
    parts = [Zeros(3, together), Zeros(3, together)]

    def read(model: object, part: Zeros) -> None:
        with torch.inference_mode():
            model.run(IDS, [part])  # type: ignore[attr-defined]

    threads = [
        threading.Thread(target=read, args=(model, part))
        for model, part in zip((any_subject.model, other), parts, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [part.layers for part in parts] == [[0, 1], [0, 1]]


def test_where_the_device_has_no_mixed_product_copies_in_float32_are_multiplied(caplog):
    """As a CPU has none."""
    has_mixed_products.cache_clear()
    one, other = torch.randn(3, 5, 16).bfloat16(), torch.randn(3, 16, 7).bfloat16()
    product = product_in_float32(one, other)
    assert torch.equal(product, torch.bmm(one.float(), other.float()))
    assert "own columns are multiplied in float32" in caplog.text
