-- How many documents of a tool of a run have so many sampled placebos and calls that the keep rule keeps at a threshold.
with changed as (
    select case when :reads_record then variant_id else document_id end as document_id, case when has_joined then 1 else -1 end as sign
    from differing_members(:corpus_id, :at_version, :below_ordinal, :counted_version, :counted_ordinal)
),
found as (
    select changed.sign, loss.document_id, loss.loss_reduction as reduction, false as is_placebo
    from changed
    join call_losses loss on loss.document_id = changed.document_id
    where loss.scoring_recipe_id = :scoring_recipe_id
      and run_keeps(loss.reason, loss.loss_reduction, :threshold,
          :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
    union all
    select changed.sign, placebo.document_id, placebo.reduction, true
    from changed
    join placebo_losses placebo on placebo.document_id = changed.document_id
    where placebo.placebo_recipe_id = :placebo_recipe_id
      and placebo.is_sampled
      and placebo.reduction >= :threshold
      and (cast(:tau_information as double precision) is null or placebo.placebo_information >= :tau_information)
),
by_document as (
    select document_id, count(*) filter (where is_placebo) as placebos, count(*) filter (where not is_placebo) as calls
    from found
    group by document_id
)
select placebos, calls, count(*) as documents from by_document group by placebos, calls order by placebos, calls
