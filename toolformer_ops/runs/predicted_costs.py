"""What a run's sampling and scoring should have taken on its GPUs, beside what it took: so that a slow node is seen.

Reckoned by the roofline (`roofline.py`) from what the run did: texts, places, samples, scored and verified
calls, and their mean lengths. Only of a run whose model proposes for itself, has the parts of Llama, and
worked on cards that the roofline knows; of others nothing is said. Placebos, tools and the loading of models
are not counted, on either side. Reads Postgres and the model's config.json; writes nothing.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.language_model.models.identity import model_config
from toolformer_ops.records import CHARACTERS_A_TOKEN
from toolformer_ops.runs.roofline import Device, Prediction, Shape, ToolWork, device_of
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

ONE_PASS_OF_TWO = 0.5
"""The share of a call's scoring that is done if the call is proved useless before its second pass."""
_CARDS = re.compile(r"(?:(\d+) )?(.+)")


@dataclass(frozen=True)
class PredictedCost:
    """GPU hours of sampling and scoring."""

    network_hours: float
    """That they took."""
    predicted_hours: float

    @property
    def as_json(self) -> dict[str, float]:
        """The costs as `annotation_runs.cost` holds them; `times_predicted` is the ratio."""
        return {
            "network_hours": round(self.network_hours, 4),
            "predicted_hours": round(self.predicted_hours, 4),
            "times_predicted": round(self.network_hours / self.predicted_hours, 2),
        }


def predicted_costs(
    settings: Settings, connection: Connection, run_id: str, model: str
) -> dict[str, PredictedCost]:
    """By tool, what the run's own work took and should have taken; no tool of which that is not known."""
    works = database.fetch_all(connection, queries.costs.work_of_tools, run_id=run_id)
    if not any(_device_and_count(work.cards) for work in works):
        return {}
    try:
        config = model_config(model, settings)
    except ToolformerError as error:
        logger.info("what the run should have taken is not known: %s", error)
        return {}
    shape = Shape.of(config.get("text_config") or config)
    costs = {work.tool: _predicted(work, shape) for work in works} if shape else {}
    return {tool: cost for tool, cost in costs.items() if cost is not None}


def store_predicted_costs(connection: Connection, run_id: str, costs: Mapping[str, PredictedCost]) -> None:
    """Put what was predicted beside the stored cost of a run, of each tool and in all."""
    if not costs:
        return
    whole = PredictedCost(
        network_hours=sum(cost.network_hours for cost in costs.values()),
        predicted_hours=sum(cost.predicted_hours for cost in costs.values()),
    )
    database.execute(
        connection,
        queries.costs.store_predicted,
        run_id=run_id,
        by_tool={tool: cost.as_json for tool, cost in costs.items()},
        total=whole.as_json,
    )
    logger.info(
        "run %s: sampling and scoring took %.2f GPU hours, %.2f are predicted",
        run_id,
        whole.network_hours,
        whole.predicted_hours,
    )


def _predicted(work: Row[Any], shape: Shape) -> PredictedCost | None:
    """What a tool's work took and should have taken; None if that is not known."""
    on = _device_and_count(work.cards)
    if on is None or not work.texts or not work.positions or not work.scored or work.proposer:
        return None
    device, count = on
    tool_work = ToolWork(
        positions=work.positions / work.texts,
        samples=work.samples / work.positions,
        prompt=work.prompt_characters / CHARACTERS_A_TOKEN,
        call=work.call_characters / CHARACTERS_A_TOKEN,
        result=work.result_characters / CHARACTERS_A_TOKEN,
        text=work.text_characters / CHARACTERS_A_TOKEN,
        scored_calls=(work.scored + ONE_PASS_OF_TWO * work.pruned) / work.texts,
    )
    prediction = Prediction(shape, device, "float32" if work.dtype == "float32" else "bfloat16")
    phases = (prediction.positions(tool_work), prediction.sampling(tool_work), prediction.scoring(tool_work))
    seconds = sum(float(cost.sum()) for cost in phases)
    seconds += prediction.verifying(
        tool_work, in_tf32=work.in_tf32 / work.scored, in_float32=work.in_float32 / work.scored
    )
    return PredictedCost(
        network_hours=work.network_seconds * count / 3600,
        predicted_hours=seconds * work.texts * count / 3600,
    )


def _device_and_count(cards: Sequence[str] | None) -> tuple[Device, int] | None:
    """The device and how many of it, if all work was on cards of one name that the roofline knows.

    It is None otherwise.
    """
    if not cards or len(cards) != 1:
        return None
    match = _CARDS.fullmatch(cards[0])
    device = device_of(match[2]) if match else None
    return (device, int(match[1] or 1)) if match and device else None
