-- first_texts: the first texts of each tool with a kept call, in the order of variant_id, the id under which the tool's rows are.
-- choosable_calls: the kept calls of all tools in these texts that could be released: those whose input is not only after them.
set local work_mem = '64MB';
set local jit = off;
drop table if exists first_texts, texts_to_choose_from, choosable_calls, releasable_calls;
create temporary table first_texts (tool text, reads_record boolean, variant_id uuid) on commit drop;
create temporary table choosable_calls (
    document_id uuid, position_char integer, call_id uuid, variant_id uuid, tool text, sampling_recipe_id text,
    execution_recipe_id text, scoring_recipe_id text, loss_reduction double precision
) on commit drop
