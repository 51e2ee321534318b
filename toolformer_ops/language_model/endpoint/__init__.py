"""A proposer behind an endpoint writes calls that the run's model judges.

The endpoint is an OpenAI-compatible server (vLLM, SGLang, an API).

    endpoint_file.py  where it is and what it is asked: the file NAME.proposer.toml beside the tool files
    client.py         requests over HTTP, tried again within a budget; what is no answer
    answers.py        answers by the content of their requests, so that nothing is asked twice
    stored_answers.py  the same in the database
    proposals.py      calls at positions of a text, from a model that continues text or chats

Finds no positions and computes no losses: the run's own model does. Imports no torch.
"""
