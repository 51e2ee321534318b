"""The description that is published with a finetuned model: `finetuning.json` with all that decides it, and a card for people.

The card's text is `model_card.md.jinja`.
"""

import json
from pathlib import Path
from typing import Any

DEFINITION = "finetuning.json"
CARD = "README.md"


def write_model_card(record: dict[str, Any], directory: Path) -> None:
    """Write both files into the model's folder; `record` is what `finetuning.json` holds."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - Markdown, not HTML
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    (directory / DEFINITION).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    card = environment.get_template("model_card.md.jinja").render(record)
    (directory / CARD).write_text(card, encoding="utf-8")
