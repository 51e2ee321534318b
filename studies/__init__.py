"""What a kept call is worth: what a model learns from calls that were chosen in different ways, tested with fresh sentences.

sentences.py          sentences whose answer a tool gives: sums in prose for the Calculator
(sum_templates.jsonl, CC0), the day of
                      writing for the Calendar (date_templates.jsonl, CC0), facts of Wikipedia's summaries for
                      WikiSearch (fact_templates.jsonl, CC0), and word problems of a file; words.json has the
                      names and things in them
calls.py              every call of every text, with its losses token by token: computed once a seed
arms.py               the rules by which an arm's calls are chosen
study.py              one seed, from sentences to models that are measured
evidence.py           what the seeds say together
"""
