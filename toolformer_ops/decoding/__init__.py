"""Decoding with tools: a finetuned model calls tools while it writes.

See Toolformer, section 2 ("Inference") and section 4.2.

    records.py        prompts, settings, and what comes back: texts and the calls made in them
    model.py          `WritingModel`: a model with its tools; `write` for texts, `generate` with transformers'
                      interface
    together.py       many texts at once: one decode step for all of them, tool calls run together
    continuation.py   the tokens that are written after a prompt, and their text
    writer.py         one text: which token follows, when a call starts, and how it ends

KV cache and decode loop are those of `language_model/`. Does not train (`finetuning/`), and does not judge
what was written (`evaluation/`).
"""
