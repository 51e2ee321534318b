"""Overlap is proved by threads that wait for each other: a run without it would end in `THE_END` seconds, not pass."""

import threading
from collections.abc import Callable

import pytest

from toolformer_ops.runs.feeding import feed

THE_END = 30.0
"""Seconds after which a thread stops waiting."""


def wait_for(event: threading.Event) -> None:
    assert event.wait(THE_END), "nothing happened at the same time"


def test_every_batch_with_work_left_goes_through_each_step_once_in_order():
    found: list[int] = []
    for batches in ([1, 2, 3, 4], [], [3], [5]):
        feed(
            batches, lambda batch: None if batch == 3 else batch * 10, lambda loaded: loaded + 1, found.append
        )
    assert found == [11, 21, 41, 51]


def test_while_a_batch_is_computed_its_neighbours_are_read_or_written():
    read, computing, wrote = ([threading.Event() for _ in range(5)] for _ in range(3))

    def compute(batch: int) -> int:
        computing[batch].set()
        if batch < 4:
            wait_for(read[batch + 1])
        if batch > 0:
            wait_for(wrote[batch - 1])
        return batch

    def write(batch: int) -> None:
        if batch < 4:
            wait_for(computing[batch + 1])
        wrote[batch].set()

    def load(batch: int) -> int:
        read[batch].set()
        return batch

    feed(range(5), load, compute, write)
    assert all(event.is_set() for event in wrote)


def test_at_most_one_batch_is_read_ahead_of_one_that_waits_to_be_written():
    begun: list[tuple[str, int]] = []
    second_computed = threading.Event()
    seen: list[list[tuple[str, int]]] = []

    def step(name: str) -> Callable[[int], int]:
        def work(batch: int) -> int:
            begun.append((name, batch))
            if (name, batch) == ("compute", 1):
                second_computed.set()
            return batch

        return work

    def write(batch: int) -> None:
        if batch == 0:
            wait_for(second_computed)  # while the first is written, the second is computed and the third read
            seen.append(list(begun))

    feed(range(9), step("read"), step("compute"), write)
    assert {batch for name, batch in seen[0] if name == "compute"} == {0, 1}
    assert {batch for name, batch in seen[0] if name == "read"} <= {0, 1, 2}


@pytest.mark.parametrize(
    ("step", "batches"),
    [("read", 9), ("compute", 9), ("write", 9), ("write", 3)],  # the third fails, which may be the last
)
def test_an_error_in_any_step_leaves_whole_batches_in_order(step, batches):
    done: list[tuple[str, int]] = []

    def make(name: str) -> Callable[[int], int]:
        def work(given: int) -> int:
            if (name, given) == (step, 2):
                raise ArithmeticError(f"{name} {given}")
            done.append((name, given))
            return given

        return work

    with pytest.raises(ArithmeticError, match=f"^{step} 2$"):
        feed(range(batches), make("read"), make("compute"), make("write"))
    assert [given for name, given in done if name == "write"] == [0, 1]  # nothing is written past the gap
    assert max(given for _, given in done) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("reading", "writing"))]
