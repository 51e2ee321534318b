"""The tools a language model may call.

`base` says what a tool is, `registry` which tools exist, `prompts/` how each is taught.
"""
