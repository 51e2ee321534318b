"""One-step sums in prose, for the Calculator: two numbers and what comes out of them. Facts are operator and numbers."""

import random
from typing import Any

from toolformer_ops.demo.study.sentences import Sentence, SentenceSource, drawn_words


def fill(template: dict[str, Any], draw: random.Random) -> Sentence:
    """A template with two numbers and their result."""
    operator = template["operator"]
    # 1. Two numbers and what comes out of them.
    if "{a_year}" in template["text"]:
        right = draw.randint(1801, 1950)
        result = draw.randint(11, 70)
        left = right + result
    elif operator == "-":
        left = draw.randint(120, 990)
        right = draw.randint(21, left - 12)
        result = left - right
    elif operator == "+":
        left, right = draw.randint(110, 990), draw.randint(110, 990)
        result = left + right
    else:
        left, right = draw.randint(12, 98), draw.randint(12, 98)
        result = left * right
        if operator == "/":
            left, result = result, left
    # 2. The other words of the template.
    numbers = {"a": left, "b": right, "a_year": right, "b_year": left, "c": result}
    return Sentence(
        text=template["text"].format_map({**drawn_words(draw), **numbers}),
        answer=str(result),
        kind=operator,
        fact=(operator, left, right),
        held_out=bool(template.get("held_out")),
    )


SUMS = SentenceSource("sum_templates.jsonl", fill)
