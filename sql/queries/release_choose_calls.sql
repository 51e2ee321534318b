-- Choose the calls that a release holds, into a table that lives as long as the transaction: calls that save at least their tool's
-- keep_threshold and whose input does not stand only after them; at each position of a text the one that saves most (of equal ones
-- the smallest id); of each tool the calls of at most max_examples texts, taken in the order of the texts' hashes.
create temporary table chosen_calls on commit drop as
with tools as (
    select *
    from unnest(
        cast(:tools as text[]), cast(:sampling_recipe_ids as text[]), cast(:scoring_recipe_ids as text[]),
        cast(:keep_thresholds as double precision[])
    ) as chosen (tool, sampling_recipe_id, scoring_recipe_id, keep_threshold)
),
kept as (
    select
        call.document_id, call.position_char, call.call_id, tools.tool, call.sampling_recipe_id,
        loss.scoring_recipe_id, loss.loss_reduction
    from tools
    join call_losses loss on loss.scoring_recipe_id = tools.scoring_recipe_id
    join candidate_calls call
        on call.sampling_recipe_id = tools.sampling_recipe_id
       and call.call_id = loss.call_id
    join run_documents document on document.run_id = :run_id and document.document_id = call.document_id
    where loss.scoring_recipe_id = any (cast(:scoring_recipe_ids as text[]))  -- reads no other partition
      and call.sampling_recipe_id = any (cast(:sampling_recipe_ids as text[]))
      and loss.reason is null
      and loss.loss_reduction >= tools.keep_threshold
      and loss.loss_reduction < 'Infinity'  -- NaN sorts above it
      and not call.input_only_after
),
one_a_position as (
    select distinct on (document_id, position_char) *
    from kept
    order by document_id, position_char, loss_reduction desc, call_id
),
numbered as (
    select *, dense_rank() over (partition by tool order by document_id) as example
    from one_a_position
)
select document_id, position_char, call_id, tool, sampling_recipe_id, scoring_recipe_id
from numbered
where example <= :max_examples
