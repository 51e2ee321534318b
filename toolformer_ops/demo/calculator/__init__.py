"""A model that learns to use the calculator: sums in prose, annotated, released, trained on, and tested with sums it never saw.

templates.jsonl   sentences with places for numbers (CC0); some are held out for the test
words.json        the names and things that fill the other places
sums.py           the sentences with numbers, drawn from a seed
study.py          the whole way, in one process and one folder: `toolformer-ops study-calculator`
"""
