-- A recipe's definition holds the prompt itself, where it held the prompt's hash; a run's choices have new names in the code.
-- Recipes of before stay as they are: their rows can be queried, and a new run computes anew what it does not find.

comment on column recipes.definition is 'What was hashed: the versions of code and tool, the text of the prompt, the model''s identity and number format, and every choice of the stage by its name (runs/choices.py), such as definition ->> ''temperature''. Recipes with a sampling_version below 4 hold prompt_sha256 instead of prompt.';
comment on column annotation_runs.parameters is 'Every choice of the run by its name (runs/choices.py: RunChoices).';
comment on column finetuned_models.definition is 'What the model''s id is the hash of: the release, the base model, and every choice that decides the training by its name (runs/choices.py: FinetuningChoices).';
