"""How far losses in a model's own number format are from float32's: measured once a model, device and format.

A network in bfloat16 or float16 decides near a threshold by rounding, and so does TF32. So calls whose gain is
nearer to a threshold than the margin of the format are computed again in a more exact one
(`language_model/scoring.py`). The margin of a keep rule is `ROOM` times the largest difference
over a few hundred calls, in texts that every installation has: the examples in the prompts of the tools, with
the word that follows as the result, which makes large reductions, and with another one.

If nothing is verified in float32 (`LanguageModel.verifies`), nothing is measured: a margin that another
process has stored counts, or else the one for any model in `language_model/scoring.py`.

A run's margin is in the table `rounding_margins`, which this module owns: every process takes the margin that
was stored first. The commands without a database have theirs in a file of the state folder.
"""

import json
import logging
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.losses import KeepRule
from toolformer_ops.records import TF32, PlacedCall, VerifyInFloat32
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import BUILT_IN_TOOLS, get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

logger = logging.getLogger(__name__)

ROOM = 2.0
"""The margin, as a multiple of the largest difference that was seen."""
MARGIN_TOOLS = BUILT_IN_TOOLS
"""The tools whose demonstrations margins are measured on: stored margins are of these."""
CALLS_A_TEXT = 14
"""Calls that a text is given; one half get the word that follows as the result."""
FILE = "rounding_margins.json"
"""In the state folder: an object with a margin for each model, device, format and keep rule."""
_EXAMPLE = re.compile(r"^Input: (.+)$", re.MULTILINE)


def allow_measured_rounding(
    settings: Settings, model: "LanguageModel", verify: VerifyInFloat32, keep_rule: KeepRule
) -> None:
    """Let a model in low precision allow for the rounding that Postgres has for it on this device.

    It is measured if that was not done.

    Raises:
        ModelError: as `LanguageModel.verifies`, for this choice.
    """
    engine = database.connect(settings)
    verifies = model.verifies(verify)
    for number_format in _formats_of(model):
        key = {
            "model_identity": model.identity,
            "device": device_name(settings.device),
            "number_format": number_format,
            "keep_rule": keep_rule,
        }
        stored = database.fetch_all(engine, queries.rounding.rounding_margin, **key)
        if not stored and verifies:
            measured = _measured(model, number_format, keep_rule)
            with database.transaction(engine) as connection:
                database.execute(connection, queries.rounding.insert_rounding_margin, **key, **measured)
                stored = database.fetch_all(connection, queries.rounding.rounding_margin, **key)
        if stored:
            model.margins[keep_rule][number_format] = stored[0].margin


def allow_rounding_without_database(
    settings: Settings, model: "LanguageModel", verify: VerifyInFloat32, keep_rule: KeepRule
) -> None:
    """Let the model's scores differ by the margin in the state folder, measured now if it is not there.

    Two processes that measure at once find the same number on one device.
    """
    file = settings.state_dir / FILE
    for number_format in _formats_of(model):
        key = f"{model.identity} {device_name(settings.device)} {number_format} {keep_rule}"
        margins = _margins_in(file)
        if model.verifies(verify) and key not in margins:
            margins[key] = _measured(model, number_format, keep_rule)["margin"]
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, json.dumps({**_margins_in(file), **margins}, indent=1) + "\n")
        if key in margins:
            model.margins[keep_rule][number_format] = margins[key]


def _formats_of(model: "LanguageModel") -> list[str]:
    """The number formats whose rounding a model allows for."""
    return [model.number_format, *([TF32] if model.has_tf32 else [])]


def _margins_in(file: Path) -> dict[str, float]:
    """By model, device, format and keep rule; none if the file is missing or damaged: measured again."""
    try:
        return {
            str(key): float(margin) for key, margin in json.loads(file.read_text(encoding="utf-8")).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _measured(model: "LanguageModel", number_format: str, keep_rule: KeepRule) -> dict[str, float]:
    """The columns of `rounding_margins`: how far the example calls' gains are from those in float32."""
    logger.info("measuring the rounding of %s in %s, once", model.identity, number_format)
    differences = model.rounding_differences(example_calls(model), number_format, keep_rule)
    if not differences:
        other = "bfloat16, which has the range of float32" if number_format == "float16" else "float32"
        raise ModelError(
            f"{model.identity}: expected finite losses of example calls in {number_format}, found none. Use "
            f"TOOLFORMER_DTYPE={other}, or another model."
        )
    measured = {
        "calls": len(differences),
        "mean_difference": statistics.fmean(differences),
        "largest_difference": max(differences),
        "margin": ROOM * max(differences),
    }
    logger.info("rounding of %s: %s", number_format, measured)
    return measured


def device_name(device: str) -> str:
    """The GPU's name, or cpu."""
    if device == "cpu":
        return device
    import torch

    return torch.cuda.get_device_name(torch.device(device))


def example_calls(model: "LanguageModel") -> list[tuple[str, list[PlacedCall]]]:
    """The example texts of the paper's tools' prompts, with calls at word starts all over each."""
    calls_of_text: dict[str, list[PlacedCall]] = {}
    for name in MARGIN_TOOLS:
        spec = get_tool(name).spec
        call = Call(spec.name, "1400 / 400" if spec.takes_input else "")
        for text in _EXAMPLE.findall(get_tool(name).prompt.replace("Input: {text}", "")):
            tokens = model.tokenize(text)
            starts = [token for token in tokens.word_starts if token >= 1]
            chosen = starts[:: max(1, -(-len(starts) // CALLS_A_TEXT))]
            calls_of_text[text] = []
            for number, token in enumerate(chosen):
                # Of every second call the word that begins there, without what would end a call.
                following = text[tokens.starts[token] :].split(maxsplit=1)[:1] if number % 2 else []
                result = "".join(following).strip("[]()") or "3.5"
                calls_of_text[text].append(PlacedCall(token, call, result))
    return list(calls_of_text.items())
