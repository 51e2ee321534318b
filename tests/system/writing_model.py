"""A tiny language model that has learned to write calls of the Calculator and of the Calendar, in a few seconds, and nothing else.

Random weights hardly ever close a bracket; a run through Airflow needs calls that parse.
"""

import random
from pathlib import Path

from tests.tiny_models import save_tiny_llama

WORDS = "the shop had sold shirts of them so it has left on we meet today and film people passed a test this day is in year"
LESSONS = 400
STEPS = 150
BATCH = 16
POSITIONS = 2048
"""The Calculator's prompt alone is 734 tokens of so small a vocabulary."""


def lessons(count: int, seed: int = 0, *, results: bool = False) -> list[str]:
    """Sentences of random words, each with one call in it; with `results` as a release has them, an arrow behind the call."""
    draw = random.Random(seed)  # noqa: S311
    words = WORDS.split()
    texts = []
    for _ in range(count):
        before = " ".join(draw.choices(words, k=draw.randint(2, 8)))
        after = " ".join(draw.choices(words, k=draw.randint(1, 4)))
        left, right = draw.randint(2, 99), draw.randint(2, 99)
        call = draw.choice([f"Calculator({left} + {right})", f"Calculator({left} * {right})", "Calendar()"])
        texts.append(f"{before} [{call}{' -> 7' if results else ''}] {after}.")
    return texts


def save_model_that_writes_calls(folder: Path, *, results: bool = False) -> Path:
    """Train the tiny Llama shape on `lessons` and write its folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    save_tiny_llama(folder, positions=POSITIONS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.div_(10.0)  # random models are scaled up for other tests; this one is to learn
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    texts = lessons(LESSONS, results=results)
    for step in range(STEPS):
        start = step * BATCH % LESSONS
        batch = tokenizer(texts[start : start + BATCH], return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
