"""The tools a language model may call: `base` says what one is, `registry` which there are, `prompts/` how each is taught."""
