"""What a model writes of ten mountains that no text has: before its training, after it, and when the database says otherwise.

The facts are in the database, not in the weights: a height that is changed there changes the sentence. The
database is a copy in a folder of its own, so that the demo's stays as it is. Writes no table.
"""

import contextlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolformer_ops.config import ENV_PREFIX, Settings, load_settings
from toolformer_ops.local.demo.mountains import DATABASE, MOUNTAINS, write_mountains
from toolformer_ops.tools.registry import forget_tools

if TYPE_CHECKING:
    from toolformer_ops.decoding.model import WritingModel

FRESH_MOUNTAINS = (
    "Makalu", "K2", "Cho Oyu", "Dhaulagiri", "Manaslu",
    "Gasherbrum I", "Broad Peak", "Gasherbrum II", "Shishapangma", "Mount Kenya",
)  # fmt: skip
"""Mountains of the database that neither a text of the corpus names, nor an example of the tool's prompt."""
CHANGED_MOUNTAINS = FRESH_MOUNTAINS[:2]
METRES_TAKEN = 1000
"""What a changed height is lower by."""
NEW_TOKENS = 12
_NUMBER = re.compile(r"\d[\d,]*")


@dataclass(frozen=True)
class FreshMountains:
    """What two models wrote of the ten mountains."""

    right_before: int
    """Heights that the language model wrote right."""
    right_after: int
    """Heights that the trained model wrote right."""
    followed: int
    """How many of `CHANGED_MOUNTAINS` the trained model gave their new height."""
    sentence_before: str
    """What the language model wrote of the first mountain."""
    sentence_after: str
    """What the trained model wrote of it, with its call."""


def prompt_about(mountain: str) -> str:
    """The beginning of a sentence that says a height; no text of the corpus begins so."""
    return f"From our tent we saw {mountain}, which is"


def ask_both_models(settings: Settings, language_model: str, trained_model: str) -> FreshMountains:
    """Let both models write about the ten mountains. For a process of its own: the tools of this one are others afterwards.

    Raises as `WritingModel.load`.
    """
    from toolformer_ops.decoding.model import WritingModel

    with tempfile.TemporaryDirectory(prefix="toolformer-mountains-") as name:
        # 1. A database of its own, as the one tool there is.
        folder = Path(name)
        write_mountains(folder)
        os.environ[f"{ENV_PREFIX}TOOLS_DIR"] = name
        load_settings.cache_clear()
        forget_tools()
        own = settings.model_copy(update={"tools_dir": folder})
        with contextlib.closing(sqlite3.connect(folder / DATABASE)) as database:
            rows = database.execute("select name, height from mountains")
            height_of = dict(rows.fetchall())
            heights = {mountain: height_of[mountain] for mountain in FRESH_MOUNTAINS}
            # 2. Before the training, and after it.
            writer = WritingModel.load(own, language_model, tools=[MOUNTAINS])
            right_before, sentence_before = _write_about(writer, heights)
            writer = WritingModel.load(own, trained_model, tools=[MOUNTAINS])
            right_after, sentence_after = _write_about(writer, heights)
            # 3. Other heights in the database.
            changed = {mountain: heights[mountain] - METRES_TAKEN for mountain in CHANGED_MOUNTAINS}
            for mountain, height in changed.items():
                database.execute("update mountains set height = ? where name = ?", (height, mountain))
            database.commit()
            followed, _ = _write_about(writer, changed)
    return FreshMountains(
        right_before=right_before,
        right_after=right_after,
        followed=followed,
        sentence_before=sentence_before,
        sentence_after=sentence_after,
    )


def _write_about(writer: "WritingModel", heights: Mapping[str, int]) -> tuple[int, str]:
    """How many mountains a model gives their height, as the first number; and the sentence about the first one."""
    from toolformer_ops.decoding.records import DecodingSettings, Prompt

    prompts = [Prompt(prompt_about(mountain)) for mountain in heights]
    written = writer.write(prompts, DecodingSettings(max_new_tokens=NEW_TOKENS))
    right = 0
    for mountain, text in zip(heights, written, strict=True):
        number = _NUMBER.search(text.without_calls)
        right += number is not None and int(number.group().replace(",", "")) == heights[mountain]
    return right, f"{written[0].prompt.text}{written[0].text}"
