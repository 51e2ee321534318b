"""The paper's evaluations (sections 4.2 to 4.4 and 5, appendices C and D): suites of inputs, metrics, intervals, comparisons.

    records.py          what is asked, what was written, what a score is
    data_files.py       the files of a data set: found, hashed, read
    suites/             one module a suite: published format to questions, prompt, barred tools, metric
    answers.py          the metrics: the right answer among the first words, the first number predicted
    dateset.py          the generator of DATESET
    running.py          a data set by a model in a variant: questions, or texts for their perplexity
    overlap.py          which texts share words with evaluation data, so that no release holds it
    session.py          suites and models, one after another; what fails, fails by name
    statistics.py       Wilson, Newcombe, McNemar, bootstrap
    comparing.py        variants on the same inputs
    tables.py           the paper's tables, in a terminal and for the page
    lm_harness.py       lm-evaluation-harness with our decoding as a model; in harness_tasks/ a suite as its task
    store.py            `evaluation_scores`, and what is on S3
    report/             the page of a run

Models are loaded by who asks for an evaluation; nothing here but `lm_harness.py` loads torch on import.
"""
