"""What a model learns from calls that were chosen in different ways, tested with sentences that it never saw.

sentences.py          what all texts of a study have in common; which answer is right
sums.py               sums in prose, for the Calculator; sum_templates.jsonl has the sentences with places for numbers (CC0)
dates.py              sentences about the day they were written on, for the Calendar; date_templates.jsonl (CC0)
words.json            the names and things that fill the other places
study.py              the whole way, in one process and one folder: `toolformer-ops study TOOL`
"""
