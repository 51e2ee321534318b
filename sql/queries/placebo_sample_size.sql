-- How many calls of a tool of a run are sampled, and how many of them have a placebo: those of an earlier run, and of the documents that joined
-- or left the corpus since.
with changed as (
    select case when :reads_record then variant_id else document_id end as document_id, case when has_joined then 1 else -1 end as sign
    from differing_members(:corpus_id, :at_version, :below_ordinal, :counted_version, :counted_ordinal)
),
counted as (
    select coalesce(sum(changed.sign), 0) as sampled,
           coalesce(sum(changed.sign) filter (
               where placebo.source is not null and (placebo.reason is null or placebo.reason = 'pruned_below')), 0) as scored
    from changed
    join placebo_losses placebo on placebo.document_id = changed.document_id
    where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.is_sampled
),
base as (
    select calls_sampled, placebos_scored from placebo_rates where run_id = :base_run_id and tool = :tool limit 1
)
select cast(counted.sampled + coalesce((select calls_sampled from base), 0) as bigint) as sampled,
       cast(counted.scored + coalesce((select placebos_scored from base), 0) as bigint) as scored
from counted
