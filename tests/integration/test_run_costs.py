"""An estimate is kept with its run, and the end of the run puts the truth beside it."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.annotated_runs import AnnotatedRun
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.look.estimation import (
    KeptTexts,
    ProbedText,
    as_json,
    extrapolate,
    store_estimate,
)
from toolformer_ops.runs.choices import PlaceboChoices
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.tools.registry import get_tool

PROBED = [ProbedText(2, 2, 6, {"sample": 3.0, "execute": 9.0, "score": 0.6})]
SECONDS = {"filter": 0.5, "sample": 3600.0, "execute": 1800.0, "score": 900.0}


@pytest.fixture
def run(settings):
    """Two texts under two tools: the calculator has three calls, the translator one."""
    run = AnnotatedRun(settings, {"Calculator": 0.5, "MT": 0.5})
    first, second = run.add_text("one has 2 and 3"), run.add_text("two has 4 and 5")
    run.add_call("Calculator", first, "has", "2 + 3", "5")
    run.add_call("Calculator", second, "has", "4 + 5", "9")
    run.add_call("Calculator", second, "and", "4 * 5", "20")
    run.add_call("MT", first, "one", "eins", "one")
    run.complete("Calculator", "MT")
    for stage, seconds in SECONDS.items():
        run.change("update micro_batches set seconds = 2 * :of where stage = :stage", stage=stage, of=seconds)
    return run


def _numbers(tool: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(tool[name] for name in ("tool", "texts", "calls", "rows", "device_hours"))


def test_the_estimate_stands_beside_the_truth(settings, run):
    kept = KeptTexts(texts=1000, decisions=1000)
    estimates = [extrapolate(get_tool(tool), kept, PROBED, PlaceboChoices()) for tool in ("Calculator", "MT")]
    with pytest.raises(UsageError, match="'other'"):
        store_estimate(settings, "other", {})
    store_estimate(settings, "run-1", as_json(settings, estimates))
    finish_run(settings, "run-1", "success")
    [(estimate, cost)] = run.rows("select estimate, cost from annotation_runs")
    # 1,000 texts of 3.6 s, of which one was tried; MT of 12.6 s
    assert [_numbers(tool) for tool in estimate["tools"]] == [
        ("Calculator", 1000, 2000, 7000, 1.0),
        ("MT", 1000, 2000, 7000, 3.5),
    ]
    assert [_numbers(tool) for tool in cost["tools"]] == [
        # 2 filter decisions, 3 calls, 3 results, 3 losses; two texts of 3,600 and 900 s
        ("Calculator", 2, 3, 11, 2.5),
        # the translator is a model: its 1,800 s a text are the device's too
        ("MT", 2, 1, 5, 3.5),
    ]
    seconds = {stage: 2 * seconds for stage, seconds in SECONDS.items()}
    assert cost["tools"][0]["seconds"] == seconds | {"placebo": 0.0}
    assert (cost["total"]["texts"], cost["total"]["calls"], cost["total"]["rows"]) == (4, 4, 16)
    # A run that ended before its first stage cost nothing.
    AnnotatedRun(settings, {"Calculator": 0.5}, "run-2")
    finish_run(settings, "run-2", "failed")
    [(cost,)] = run.rows("select cost from annotation_runs where run_id = 'run-2'")
    assert (cost["total"]["texts"], cost["total"]["rows"], cost["total"]["device_hours"]) == (0, 0, 0)


NETWORK = "network_tokens = 3000, network_seconds = 2, network_operations = :done, peak_operations = :peak, cards = :cards"


@pytest.mark.parametrize(
    ("peak", "share"),
    [(4e12, 0.25), (None, None)],
)
def test_the_cost_of_a_run_says_how_fast_its_models_read(settings, run, peak, share):
    """Three thousand tokens in two seconds, a billion operations each, of sampling and scoring alike."""
    run.change(
        f"update micro_batches set {NETWORK} where stage in ('sample', 'score')",
        done=1e12,
        peak=peak,
        cards="card",
    )
    finish_run(settings, "run-1", "success")
    [(cost,)] = run.rows("select cost from annotation_runs")
    calculator = cost["tools"][0]
    assert (calculator["network_tokens"], calculator["tokens_per_second"]) == (6000, 1500.0)
    assert calculator["share_of_peak"] == share
