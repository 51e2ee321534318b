"""The paper's evaluations (sections 4.2 to 4.4 and 5, appendices C and D): suites of inputs, metrics, intervals, comparisons.

    records.py          what is asked, what was written, what a score is
    data_files.py       the files of a data set: found, hashed, read
    suites/             one module a suite: published format to questions, prompt, barred tools, metric
    prompts.py          zero-shot prompts, one text file each
    words.py            what a word is; the right answer among the first words
    numbers.py          the first number predicted
    dateset.py          the generator of DATESET
    statistics.py       Wilson, bootstrap, McNemar
    running.py          a suite by a model in a variant
    text_quality.py     perplexity of texts with calls disabled
    comparing.py        variants beside each other
    tables.py           the paper's tables in a terminal
    store.py            `evaluation_scores`

Only `running.py` and `text_quality.py` meet a model; nothing here loads torch on import.
"""
