"""Finetuning on a release (Toolformer, section 2 "Model Finetuning", and appendix B).

    recipe.py      what decides a finetuned model, and the model's id
    sequences.py   texts with calls to token sequences, passes over them, batches
    training.py    transformers' Trainer, progress lines, the files that are published

`stages/finetuning.py` reads the release, keeps the books and publishes.
"""
