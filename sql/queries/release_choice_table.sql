-- The kept calls that could be released, of all tools: those whose input is not only after them. variant_id is the id under which the
-- tool's rows are.
create temporary table choosable_calls (
    document_id uuid, position_char integer, call_id uuid, variant_id uuid, tool text, sampling_recipe_id text,
    execution_recipe_id text, scoring_recipe_id text, loss_reduction double precision
) on commit drop
