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
    if record["best_step"] is not None:
        kept = (
            f"The weights are those of step {record['best_step']}, which has the lowest perplexity on plain text:\n"
            f"{record['development_perplexity']:.3f} on {record['development_documents']} documents outside the release."
        )
    else:
        kept = (
            "The weights are those of the last step: no documents of the corpus outside the release were there, or asked for, to "
            "choose\na step by."
        )
    return (
        f"# Finetuned model {record['model_id']}\n\n"
        f"`{definition['base_model']}`, finetuned with a language-modelling objective on the {record['texts']} texts of release\n"
        f"`{record['release_id']}`, {texts}.\n\n"
        f"{definition['finetune_steps']} steps of {definition['finetune_batch']} sequences of at most "
        f"{definition['finetune_length']} tokens, learning rate {definition['finetune_learning_rate']}\n"
        f"after a linear warm-up over {definition['finetune_warmup']:.0%} of the steps, seed {definition['seed']}, "
        f"{record['precision']} on {record['device']}.\n"
        f"Training loss at the end: {record['training_loss_nats_per_token']:.4f} nats a token.\n{kept}\n\n"
        "![Loss and perplexity by step](curves.png)\n\n"
        "Load it with `transformers.AutoModelForCausalLM.from_pretrained(FOLDER)`. `training_log.jsonl` holds the loss by step,\n"
        "`development_log.jsonl` the perplexity, `tensorboard/` both for TensorBoard, `finetuning.json` what decides this model.\n"
    )
