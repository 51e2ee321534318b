"""How fast the engine is, against the paper's method written plainly and against what the arithmetic needs.

    reference.py      the method with transformers alone: no cache between calls, no shortcut
    random_models.py  models with random weights and a tokenizer made in code
    works.py          which model, which texts, which numbers: works A to D
    variants.py       the engine's settings that are compared, timed by stage
    agreement.py      the same calls sampled, the same calls kept
    floor.py          what the arithmetic needs at the matrix rate of this machine
    measuring.py      works A and B: everything side by side in one process
    many_texts.py     work C: time a text and memory against the number of texts
    gpu.py            work D: large models on a GPU
    launches.py       operations and device reads of a decode step, counted
    window.py         what `scoring_context_tokens` costs and keeps
    report.py         JSON and Markdown

`python -m benchmarks --help`, or `make bench`. It is not part of the package and is not installed with it.
"""
