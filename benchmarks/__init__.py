"""How fast the engine is, against the paper's method written plainly and against what the arithmetic needs.

    reference.py      the method with transformers alone: no cache between calls, no shortcut
    random_models.py  models with random weights and a tokenizer made in code
    works.py          which model, which texts, which numbers: works A and B
    variants.py       the engine's settings that are compared, timed by stage
    agreement.py      the same calls sampled, the same calls kept
    floor.py          what the arithmetic needs at the matrix rate of this machine
    measuring.py      works A and B: everything side by side in one process
    gpu.py            `make bench-gpu`: large models on a GPU, transformers' generate, and the demo
    roofline.py       texts an hour predicted for GPUs
    launches.py       operations and device reads of a decode step, counted
    database.py       `make bench-database`: queries and stages over up to a million documents
    structure.py      how the package reads, in figures
    report.py         JSON and Markdown

`python -m benchmarks --help`, or `make bench`. It is not part of the package and is not installed with it.
"""
