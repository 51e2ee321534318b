-- The tokens that a call's losses weight, and their log probabilities, a list for each loss; null where they are not stored.
select token_log_probabilities as log_probabilities, scored_tokens
from call_losses
where scoring_recipe_id = :scoring_recipe_id and document_id = cast(:document_id as uuid) and call_id = cast(:call_id as uuid)
