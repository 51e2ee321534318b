"""The description that is published with a finetuned model: `finetuning.json` with all that decides it, and a card for people.

The card's text is `model_card.md.jinja`.
"""

import json
from pathlib import Path
from typing import Any

from toolformer_ops.release.card import markdown
from toolformer_ops.runs.models import FINETUNING

CARD = "README.md"


def write_model_card(record: dict[str, Any], directory: Path) -> None:
    """Write both files into the model's folder; `record` is what `finetuning.json` holds."""
    (directory / FINETUNING).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    card = markdown(Path(__file__).parent / "model_card.md.jinja", **record)
    (directory / CARD).write_text(card, encoding="utf-8")
