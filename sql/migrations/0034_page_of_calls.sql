-- The calls of a recipe that were not scored for one reason, in the order of their documents, for the page in the Airflow UI. Without the
-- calls that were pruned, of which there are many: they are found in the order of the corpus.
-- Building the index locks the writes of call_losses: less than 1 s for 1,000,000 calls.
create index call_losses_not_scored on call_losses (scoring_recipe_id, reason, document_id, call_id)
    where reason is not null and reason <> 'pruned_below';
comment on index call_losses_not_scored is 'The calls of a recipe that were not scored, by reason, but for those that were pruned.';
