"""The slots of Airflow's pools: `up` sets them, and leaves those that a person has set."""

import logging
from typing import Any, cast

import pytest

from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.local.airflow import set_pools
from toolformer_ops.local.state_folder import StatePaths

TWO_CORES = {"cpu": 2, "gpu": 2}
FOUR_CORES = {"cpu": 4, "gpu": 4}


class Pools:
    """The pools of an Airflow, by name."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}

    def pool_slots(self, name: str) -> int | None:
        return self.slots.get(name)

    def set_pool(self, name: str, slots: int, description: str, include_deferred: bool) -> None:
        assert description
        assert include_deferred
        self.slots[name] = slots

    def set_by_up(self, paths: StatePaths, slots: dict[str, int]) -> dict[str, int]:
        return set_pools(paths, cast(AirflowClient, self), slots)


@pytest.fixture
def paths(tmp_path):
    found = StatePaths(tmp_path / "state")
    found.airflow_home.mkdir(parents=True)
    return found


def test_pools_are_made_with_the_slots_of_the_machine(paths):
    airflow = Pools()
    assert airflow.set_by_up(paths, TWO_CORES) == TWO_CORES
    assert airflow.slots == TWO_CORES


def test_slots_that_up_has_set_follow_the_settings(paths):
    airflow = Pools()
    airflow.set_by_up(paths, TWO_CORES)
    airflow.set_by_up(paths, FOUR_CORES)
    assert airflow.slots == FOUR_CORES


@pytest.mark.parametrize("wanted", [TWO_CORES, FOUR_CORES])
def test_slots_that_a_person_has_set_stay(paths, caplog, wanted):
    airflow = Pools()
    airflow.set_by_up(paths, TWO_CORES)
    airflow.slots["gpu"] = 1
    with caplog.at_level(logging.WARNING):
        assert airflow.set_by_up(paths, wanted) == {"cpu": wanted["cpu"], "gpu": 1}
    assert airflow.slots["gpu"] == 1
    assert "the pool gpu keeps the 1 slots that a person has set" in caplog.text


def test_slots_of_an_airflow_from_before_their_note_stay(paths):
    airflow = Pools()
    airflow.slots = {"cpu": 7, "gpu": 2}
    assert airflow.set_by_up(paths, TWO_CORES) == {"cpu": 7, "gpu": 2}


def test_slots_from_before_their_note_that_are_those_of_the_machine_follow_the_settings(paths):
    airflow = Pools()
    airflow.slots = {"cpu": 2, "gpu": 2}
    airflow.set_by_up(paths, TWO_CORES)
    airflow.set_by_up(paths, FOUR_CORES)
    assert airflow.slots == {"cpu": 4, "gpu": 4}


def test_a_pool_that_is_gone_is_made_again(paths):
    airflow: Any = Pools()
    airflow.set_by_up(paths, TWO_CORES)
    del airflow.slots["gpu"]
    airflow.set_by_up(paths, TWO_CORES)
    assert airflow.slots == TWO_CORES
