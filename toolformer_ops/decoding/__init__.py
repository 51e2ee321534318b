"""Decoding with tools (Toolformer, section 2 "Inference" and section 4.2): a finetuned model calls tools while it writes.

    records.py    prompts, settings, and what comes back: texts and the calls made in them
    model.py      `WritingModel`: a model with its tools, open and ready to write

Does not train (`finetuning/`) and does not judge what was written (`evaluation/`).
"""
