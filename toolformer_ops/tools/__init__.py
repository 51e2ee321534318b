"""The tools that a language model may call: `base` says what a tool is, `registry` which there are, `prompts/` how each is taught."""
