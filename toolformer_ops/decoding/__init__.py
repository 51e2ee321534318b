"""Decoding with tools (Toolformer, section 2 "Inference" and section 4.2): a finetuned model calls tools while it writes.

    records.py        prompts, settings, and what comes back: texts and the calls made in them
    model.py          `WritingModel`: a model with its tools; `write` for texts, `generate` with transformers' interface
    together.py       many texts at once: one pass a token, tool calls run together
    writer.py         one text: which token follows, when a call starts, and what becomes of it
    continuation.py   its tokens, with and without calls
    tool_runs.py      the tools, and the calls that wait for them

The caches are `language_model/rows.py`. Does not train (`finetuning/`) and does not judge what was written (`evaluation/`).
"""
