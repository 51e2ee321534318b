"""What a model learns from calls that were chosen in different ways, tested with sentences that it never saw.

sentences.py          sentences whose answer a tool gives: sums in prose, for the Calculator (sum_templates.jsonl, CC0), and
                      sentences about the day they were written on, for the Calendar (date_templates.jsonl, CC0)
words.json            the names and things that fill the other places
study.py              the whole way, in one process and one folder: `make study NAME=TOOL`
"""
