"""What the engine and a training do on the GPU at hand, in five minutes: `make bench-gpu`, or `python -m benchmarks.gpu`.

    correctness.py    tiny models of each architecture against the CPU
    speed.py          the peak of matrix products, annotation beside the plain way, rungs of verification
    training.py       finetuning
    shapes.py         networks in the shapes of 1.5B, 7B and 8B models, with random weights
    sizes.py          how much is measured
    varlen.py         what a torch before 2.13 lacks
    session.py        parts, notes and the report

Needs the package's Python and one GPU: no database, no Airflow, no model, no network.
"""
