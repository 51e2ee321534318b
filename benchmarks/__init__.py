"""How fast the engine is, against the paper's method written plainly, and what its arithmetic would take on GPUs.

    engine.py         works A and B: the engine's settings and the reference side by side in one process
    reference.py      the method with transformers alone: no cache between calls, no shortcut; the tests judge
                      by it, too
    random_models.py  models with random weights and a tokenizer made in code
    works.py          which model, which texts, which numbers: works A and B
    gpu/              `make bench-gpu`: what the engine and a training do on the GPU at hand
    predictions.py    texts an hour reckoned for GPUs that are not at hand
    launches.py       operations and device reads of a decode step, counted on `device_twin.py`
    database.py       `make bench-database`: queries and stages over up to a million documents
    structure.py      how the package reads, in figures
    report.py         JSON and Markdown

`python -m benchmarks --help`, or `make bench`. It is not part of the package and is not installed with it.
"""
