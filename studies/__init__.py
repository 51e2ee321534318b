"""What a kept call is worth: what a model learns from calls that were chosen in different ways, tested with fresh texts.

sentences.py     sentences whose answer a tool gives, filled templates (*_templates.jsonl, CC0): sums in prose for the
                 Calculator, the day of writing for the Calendar, facts of Wikipedia's summaries for WikiSearch
real_texts.py    texts that nobody wrote for a tool, of a file: word problems, dated posts
plan.py          the numbers of a study, by its name
calls.py         every call of every text, with its losses token by token: computed once a seed
arms.py          the rules by which an arm's calls are chosen
training.py      the training of an arm
measuring.py     what a model writes and reads
devices.py       number formats, and processes that share a GPU
study.py         one seed, from sentences to models that are measured
side_by_side.py  seeds as processes, until a time
answers.py       the raw answers by seed; those of docs/evidence.md are in answers/
following.py     whether a text goes on with a result
study_answers.py what the answers of a study's seeds say together
statistics.py    means over seeds, paired differences
labelled_calls.py    calls with labels that follow from how they are made, in texts that nobody wrote for a tool
labelled_scores.py   their log probabilities, in answers/
keep_rules.py    statistics by which calls may be kept, compared on labelled and on sampled calls
labelled_texts.py    texts with such calls that arms are trained on
tool_folder.py   a study whose tool is a tool file
rows.py          facts in a table and in weights: rows change between the questions; row_templates.jsonl (CC0)
row_figures.py   their table and bars
page_tables.py   columns and rows in Markdown
evidence.py      the tables, and docs/evidence.md
"""
