-- The log probabilities of the tokens that a call's losses weight, a list for each loss; null where they are not stored. The row as JSON, so
-- that a call of before they were stored has none.
select to_jsonb(loss) -> 'token_log_probabilities' as log_probabilities
from call_losses loss
where loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = cast(:document_id as uuid) and loss.call_id = cast(:call_id as uuid)
