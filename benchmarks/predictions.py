"""Work "roofline": texts an hour reckoned for GPUs that are not at hand (`roofline.py`).

Every tool has its own numbers (the paper's k and m) and the lengths of the calls that its prompt shows; nothing
is pruned, and every sample is another call.
"""

import itertools
import math
import re
import statistics
from typing import Any

from benchmarks.engine import STAGES
from benchmarks.roofline import DEVICES, SHAPES, Prediction, ToolWork
from benchmarks.works import FIXED_RESULTS
from toolformer_ops.records import CHARACTERS_A_TOKEN
from toolformer_ops.tools.registry import BUILT_IN_TOOLS, get_tool

NEAR_A_THRESHOLD, NEAR_IN_TF32 = 0.169, 0.019
"""Of the calls, those within 0.18 nats of a threshold, which bfloat16's rounding may decide, and those within 0.02,
which TF32's may: of the demo's 420 calls."""
RESULTS = FIXED_RESULTS | {"Calculator": "0.29", "Calendar": "Today is Thursday, March 9, 2017."}
"""A result of usual length of each tool."""


def work_of(tool: str) -> ToolWork:
    """A tool's work with its own numbers, on texts of English prose."""
    spec, prompt = get_tool(tool).spec, get_tool(tool).prompt
    calls = re.findall(rf"\[{tool}\([^\[\]]*\]", prompt)
    return ToolWork(
        positions=spec.max_positions,
        samples=spec.samples_per_position,
        prompt=len(prompt) // CHARACTERS_A_TOKEN,
        call=math.ceil(statistics.fmean(map(len, calls)) / CHARACTERS_A_TOKEN),
        result=math.ceil(len(RESULTS[tool]) / CHARACTERS_A_TOKEN),
    )


def predict() -> list[dict[str, Any]]:
    """One entry for each device, shape and tool; milliseconds a text."""
    found: list[dict[str, Any]] = []
    for device, name in itertools.product(DEVICES, SHAPES):
        prediction = Prediction(SHAPES[name], device)
        for tool in BUILT_IN_TOOLS:
            work = work_of(tool)
            phases = [prediction.positions(work), prediction.sampling(work), prediction.scoring(work)]
            seconds = sum(float(cost.sum()) for cost in phases)
            row: dict[str, Any] = {"device": device.name, "shape": name, "reckoned GPUs": prediction.devices}
            row["tool"] = f"{tool}, {work.positions} x {work.samples}"
            for phase, cost in zip(STAGES, phases, strict=True):
                row[f"reckoned ms, {phase}"] = (
                    f"{cost.sum() * 1000:.3g}, {'operations' if cost[0] >= cost[1] else 'bytes'}"
                )
            row["reckoned texts an hour"] = round(3600 / seconds)
            verified = seconds + prediction.verifying(work, NEAR_A_THRESHOLD, NEAR_IN_TF32)
            row["reckoned with verifying"] = (
                round(3600 / verified) if prediction.has_room_for_float32 else "no room"
            )
            row["reckoned GPU hours for 1,000,000 texts"] = round(seconds * prediction.devices * 1e6 / 3600)
            found.append(row)
    return found
