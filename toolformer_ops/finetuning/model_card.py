"""What stands beside the weights of a finetuned model: `finetuning.json` with all that decides it, and a card for people."""

import json
from pathlib import Path
from typing import Any

DEFINITION = "finetuning.json"
CARD = "README.md"


def write_model_card(record: dict[str, Any], directory: Path) -> None:
    """Write both files into the model's folder; `record` is what `finetuning.json` holds."""
    (directory / DEFINITION).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (directory / CARD).write_text(_card(record), encoding="utf-8")


def _card(record: dict[str, Any]) -> str:
    definition = record["definition"]
    if definition["without_calls"]:
        texts = "with their tool calls taken out: the baseline that was finetuned without calls"
    else:
        texts = "whose tool calls were found by the method of Toolformer (Schick et al., 2023)"
    return (
        f"# Finetuned model {record['model_id']}\n\n"
        f"`{definition['base_model']}`, finetuned with a language-modelling objective on the {record['texts']} texts of release\n"
        f"`{record['release_id']}`, {texts}.\n\n"
        f"{definition['steps']} steps of {definition['batch']} sequences of at most {definition['length']} tokens, learning rate "
        f"{definition['learning_rate']}\nafter a linear warm-up over {definition['warmup']:.0%} of the steps, seed "
        f"{definition['seed']}, {record['precision']} on {record['device']}.\n"
        f"Training loss at the end: {record['training_loss_nats_per_token']:.4f} nats a token.\n\n"
        "Load it with `transformers.AutoModelForCausalLM.from_pretrained(FOLDER)`. `training_log.jsonl` holds the loss by step,\n"
        "`finetuning.json` everything that decides this model.\n"
    )
