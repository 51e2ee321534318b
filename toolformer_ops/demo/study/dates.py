"""Sentences about the day on which they were written, for the Calendar: its weekday, its date, the days until another date.

Facts are the day and what is asked. A weekday follows from the day alone; the days until another date must be counted, which the
Calendar does not do: it tells the day.
"""

import datetime
import random
from typing import Any

from toolformer_ops.demo.study.sentences import Sentence, SentenceSource, drawn_words
from toolformer_ops.tools.calendar import DAYS, MONTHS

FIRST_DAY = datetime.date(2005, 1, 1)
DAYS_DRAWN = 20 * 365
FARTHEST = 60
"""Most days until the other date."""


def fill(template: dict[str, Any], draw: random.Random) -> Sentence:
    """A template with a day and what is asked about it."""
    day = FIRST_DAY + datetime.timedelta(days=draw.randrange(DAYS_DRAWN))
    until = draw.randint(2, FARTHEST)
    kind = template["kind"]
    answers = {"weekday": DAYS[day.weekday()], "date": _written(day), "days until": str(until)}
    # The places of a template are named so that none of the other words can give an answer away.
    words = {place: word for place, word in drawn_words(draw).items() if place not in {"day", "month"}}
    text = template["text"].format_map(
        {**words, "answer": answers[kind], "other_date": _written(day + datetime.timedelta(days=until))}
    )
    return Sentence(
        text=text,
        answer=answers[kind],
        kind=kind,
        fact=(kind, day),
        held_out=bool(template.get("held_out")),
        date=day,
    )


def _written(day: datetime.date) -> str:
    return f"{MONTHS[day.month - 1]} {day.day}"


DATES = SentenceSource("date_templates.jsonl", fill)
