"""The engine: where a model would start calls, what it would call, and how much a call lowers its loss.

See Toolformer, section 2.

    tokenization.py   one encoding of a text, its windows, a tool's prompt, start token
    packing.py        a pass in parts that attend together; passes over many texts, without padding
    columns.py        keys and values of prompts, texts and the rows that continue them; where a pass writes
    attention.py      attention of one pass over a group of texts
    causal_model.py   passes through the network; log probabilities
    kv_cache.py       the KV cache (prefill, share, step, keep, cut), and the decode loop; greedy text
    comparison.py     a network becomes the engine's after a comparison with its own forward pass
    devices.py        which GPUs there are; budgets from the free memory; a batch that does not fit is halved
    context.py        prompt and text, computed once for all positions and samples; p(" [") at word starts
    sampling.py       calls, and the random numbers that belong to each
    losses.py         the weights of a loss, and the keep rule
    scoring.py        three losses a call
    perplexity.py     the loss of whole texts, calls disabled
    model.py          `LanguageModel`, the door to all of it; needs torch

Which model it is and how it is loaded is in `models/`.
"""
