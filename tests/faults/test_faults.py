"""Each fault once: what a run leaves is what an undisturbed run leaves, and every message names its cause.

`make faults TIMES=50` is the long form, at other places and moments each time.
"""

from collections.abc import Iterator

import pytest

from tests.faults.disturbances import ALL, Fault, tried
from tests.faults.world import World, a_world

pytestmark = pytest.mark.slow

SEED = "short"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.mark.parametrize("fault", ALL, ids=[fault.name for fault in ALL])
def test_a_disturbed_run_leaves_what_an_undisturbed_one_does(world: World, fault: Fault) -> None:
    if reason := fault.why_not(world):
        pytest.skip(reason)
    outcome = tried(world, fault, SEED)
    assert not outcome.problems, f"again: make faults FAULTS={fault.name} SEED={SEED} TIMES=1\n" + "\n".join(
        outcome.problems
    )
