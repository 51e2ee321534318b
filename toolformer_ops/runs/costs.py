"""What a call costs, and what it has to save for that.

Owns the table `measured_call_seconds`; `stages/run_setup.py` writes `call_costs`. A run may ask for nats for
each second of a call (`nats_per_second`) and for each unit of its price (`nats_per_price`); the paper names
the cost of calls as open (section 7). With a cost of s seconds and p units a call is kept where

    loss reduction >= max(tau_f, nats_per_second * s + nats_per_price * p)

A tool has one cost for all of its calls. So the right side is one number for each tool of a run: it is stored
as the run's keep threshold, and the keep rule in SQL stays `is_kept`.

A price is what the tool says (`ToolSpec.price`, the table `[cost]` of its file). Seconds are given by the run
(`call_seconds`), or measured: the median of a tool's executions. Two measurements differ, and equal input
must give equal rows. So seconds are fixed when the first run asks for them, to two significant digits, and
stored for the tool's version; every later run takes what is stored. A run that is started again keeps the row
that it has, and a release's id holds the costs of its tools. Another database may measure other seconds:
`call_seconds` makes them equal. If nothing of the tool was executed yet, the run is refused with that remedy.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import get_tool

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CallCost:
    """What a call of a tool costs in a run.

    Seconds and price are None if the run asks for no nats for them.
    """

    seconds: float | None = None
    nats_per_second: float | None = None
    price: float | None = None
    price_unit: str | None = None
    nats_per_price: float | None = None

    @property
    def cost_threshold(self) -> float:
        """Nats that a kept call saves at least."""
        for_seconds = (self.seconds or 0.0) * (self.nats_per_second or 0.0)
        return for_seconds + (self.price or 0.0) * (self.nats_per_price or 0.0)


def costs_of_run(settings: Settings, choices: RunChoices, versions: Mapping[str, str]) -> dict[str, CallCost]:
    """By tool, what its calls cost; no tools if the run asks for no nats.

    `versions` are those of the run's tools.

    Seconds that were not given are those stored for the tool's version. If there are none, they are measured
    and stored: the median over this version's executions, or over those of the version before.

    Raises:
        UsageError: a tool has executed nothing yet, and the run does not give its seconds.
    """
    unknown = [tool for tool in choices.tools if choices.nats_per_second and tool not in choices.call_seconds]
    fixed = {tool: _fixed_seconds(settings, tool, versions[tool]) for tool in unknown}
    return _costs(choices, {**fixed, **choices.call_seconds})


def given_costs(choices: RunChoices) -> dict[str, CallCost]:
    """Return the costs without a database, if nothing is measured: seconds are given.

    Raises:
        UsageError: the run asks for nats for each second, and does not give the seconds of a tool.
    """
    unknown = [tool for tool in choices.tools if tool not in choices.call_seconds]
    if choices.nats_per_second and unknown:
        raise UsageError(
            f"nats_per_second: expected the seconds of a call of {', '.join(unknown)}, found none. Add "
            "call_seconds, as "
            f'{{"{unknown[0]}": 0.5}}.'
        )
    return _costs(choices, choices.call_seconds)


def with_costs(choices: RunChoices, costs: Mapping[str, CallCost]) -> RunChoices:
    """The choices with the keep thresholds raised to what the calls cost.

    They are the same choices if nothing costs more.
    """
    dear = {tool: cost.cost_threshold for tool, cost in costs.items()}
    thresholds = {tool: choices.keep_threshold(get_tool(tool).spec) for tool in dear}
    raised = {tool: nats for tool, nats in dear.items() if nats > thresholds[tool]}
    # A copy, since a cost may ask for more nats than a person may.
    return (
        choices.model_copy(update={"keep_thresholds": {**choices.keep_thresholds, **raised}})
        if raised
        else choices
    )


def _costs(choices: RunChoices, seconds: Mapping[str, float]) -> dict[str, CallCost]:
    costs: dict[str, CallCost] = {}
    for tool in choices.tools:
        spec = get_tool(tool).spec
        cost: dict[str, Any] = {}
        if choices.nats_per_second:
            cost |= {"seconds": seconds[tool], "nats_per_second": choices.nats_per_second}
        if choices.nats_per_price and spec.price is not None:
            cost |= {
                "price": spec.price,
                "price_unit": spec.price_unit,
                "nats_per_price": choices.nats_per_price,
            }
        if cost:
            costs[tool] = CallCost(**cost)
    return costs


def _fixed_seconds(settings: Settings, tool: str, version: str) -> float:
    """The seconds of a call, as the first run that asked for them measured them."""
    key = {"tool": tool, "tool_version": version}
    with database.transaction(database.connect(settings)) as connection:
        fixed = database.fetch_all(connection, queries.costs.fixed_call_seconds, **key)
        if not fixed:
            measured = database.fetch_all(connection, queries.costs.measured_call_seconds, **key)
            if not measured:
                raise UsageError(
                    f"nats_per_second: expected executed calls of {tool} to measure, found none. Give what a "
                    "call takes, as "
                    f'call_seconds {{"{tool}": 0.5}}; or run once with nats_per_second 0: a later run uses all of its work again.'
                )
            [median] = measured
            rounded = {**median._asdict(), "seconds": float(f"{median.seconds:.2g}")}
            database.execute(connection, queries.costs.fix_call_seconds, **key, **rounded)
            # Another run may have been first.
            fixed = database.fetch_all(connection, queries.costs.fixed_call_seconds, **key)
            logger.info("a call of %s takes %g s, the median of %d", tool, fixed[0].seconds, median.calls)
    return float(fixed[0].seconds)
