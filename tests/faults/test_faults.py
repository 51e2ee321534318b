"""Each fault: what a run leaves is what an undisturbed run leaves, and every message names its cause.

A seed decides where a fault is sent and when; how far a process has come by then differs a little from time
to time. `make faults` sets FAULTS (names; all by default), PROPOSERS (who proposes the calls of the run), SEED,
and TIMES, so that each fault comes at other places and moments each time.
"""

import os
import random
import re

import pytest

from tests.faults.disturbances import ALL, WHILE_TOOLS_PROPOSE
from tests.faults.world import a_world
from toolformer_ops.errors import EXIT_TERMINATED

pytestmark = pytest.mark.slow

NAMES = os.environ.get("FAULTS", "").split() or list(ALL)
PROPOSERS = os.environ.get("PROPOSERS", "").split() or ["model", "tool", "tool+model"]
CASES = [
    (proposer, name)
    for proposer in PROPOSERS
    for name in NAMES
    if proposer == "model" or name in WHILE_TOOLS_PROPOSE
]
SEED, TIMES = os.environ.get("SEED", "short"), int(os.environ.get("TIMES", "1"))
SEEDS = [f"{SEED}.{number}" for number in range(TIMES)] if TIMES > 1 else [SEED]
MOST_REDONE = 2
"""Micro-batches for each process that ended before its work was done."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with a_world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("proposer", "name"), CASES)
def test_a_disturbed_run_leaves_what_an_undisturbed_one_does(world, proposer, name, seed):
    fault = ALL[name]
    world.propose_by(proposer)
    if reason := fault.why_not(world):
        pytest.skip(reason)
    disturbance = fault.disturbance(world, random.Random(f"{seed} {name}"))  # noqa: S311
    disturbance.processes = fault.processes
    outcome = world.run_chain(disturbance)
    problems = outcome.problems + [
        f"{step} ended with {status}, and its last line names no cause as {fault.says!r} has it: {last}"
        for step, status, last in outcome.failures
        if status > 0 and status != EXIT_TERMINATED and not re.search(fault.says, last)
    ]
    if fault.processes == 1 and outcome.redone > MOST_REDONE * len(outcome.failures):
        problems.append(
            f"{outcome.redone:g} micro-batches were computed again, {len(outcome.failures)} ended early"
        )
    assert not problems, "\n".join(
        [f"again: make faults PROPOSERS={proposer} FAULTS={name} SEED={seed} TIMES=1", *problems]
    )
