"""A release as chat messages with tools and tool results: what chat templates and supervised finetuning take today.

    conversation.py   one released text as one conversation, and the tools' JSON schemas
    exporting.py      a whole release to JSON Lines, on disk or on S3

Needs no model, no template and no database.
"""
