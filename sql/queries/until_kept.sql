-- A tool of a run that ends when enough of its calls are kept.

-- name: kept
-- How many calls are kept so far, the text up to which enough are (null: nowhere), and how many texts there
-- are up to a place. Before the pool of placebos is drawn a call counts as kept if it gains enough without a
-- placebo.
with kept as (
    select member.document_id, count(*) as calls
    from members_to_do(:members) member
    join call_losses loss on loss.scoring_recipe_id = :scoring_recipe_id
        and loss.document_id = member.variant_id
    left join call_information placebo
        on placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = loss.document_id
            and placebo.call_id = loss.call_id
    where is_kept(loss.reason, loss.gain_bound, :keep_threshold)
      and (cast(:placebo_recipe_id as text) is null
           or run_keeps(loss.reason, loss.gain_bound, :keep_threshold, loss.probability_with,
               placebo.probability))
    group by member.document_id
),
summed as (
    select document_id, sum(calls) over (order by document_id) as calls from kept
)
select cast(coalesce(max(calls), 0) as bigint) as calls,
       (select document_id from summed where calls >= :until_kept order by document_id
           limit 1) as last_document_id,
       (select count(*) from members_to_do(:members) where document_id <= cast(:up_to as uuid)) as texts
from summed

-- name: undone
-- The last of the first undone texts, so many or as many as there are; no row if all is done.
select document_id
from (
    select document_id
    from member_stages(:members, :filter_recipe_id, :scoring_recipe_id, :placebo_recipe_id)
    where not is_filtered or is_kept and not (is_scored and has_placebos)
    order by document_id
    limit :texts
) first_texts
order by document_id desc
limit 1

-- name: so_far
-- How many calls of each tool a run keeps so far, and of how many; no rows for a run without until_kept.
select rt.tool, coalesce(counts.calls, 0) as calls,
    cast(run.parameters ->> 'until_kept' as integer) as until_kept
from run_tools rt
join annotation_runs run using (run_id)
left join threshold_counts counts on counts.run_id = rt.run_id and counts.tool = rt.tool
    and counts.is_keep_threshold
where rt.run_id = :run_id and run.parameters ->> 'until_kept' is not null

-- name: end
update run_tools set last_document_id = :last_document_id where run_id = :run_id and tool = :tool
