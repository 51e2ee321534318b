-- Recipes with rows that none of these runs uses, with the documents in the ledger, the bytes of their partitions, and the bytes that their
-- rows take of the tables that have no partitions (by the mean length of a row).
with of_runs as (
    select distinct used.stage, used.recipe_id, run.tool
    from run_tools run
    cross join lateral (
        values ('filter', filter_recipe_id), ('sample', sampling_recipe_id), ('execute', execution_recipe_id), ('score', scoring_recipe_id),
               ('placebo', placebo_recipe_id)
    ) as used (stage, recipe_id)
    where used.recipe_id = coalesce(cast(:recipe_id as text), used.recipe_id)
      and used.recipe_id not in (
          select recipe_id
          from run_tools
          cross join unnest(array[filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, placebo_recipe_id]) recipe_id
          where recipe_id is not null and run_id = any(cast(:run_ids as text[]))
      )
),
counted as (
    select of_runs.*,
           (select count(*) from stage_ledger done where done.recipe_id = of_runs.recipe_id and done.stage = of_runs.stage) as documents,
           (select count(*) from filter_decisions made where made.filter_recipe_id = of_runs.recipe_id) as decisions,
           (select coalesce(sum(pg_total_relation_size(to_regclass(quote_ident(parent || '_' || of_runs.recipe_id)))), 0)::bigint
            from unnest(array['candidate_calls', 'pruned_positions', 'call_losses', 'placebo_losses']) as parent) as partition_bytes
    from of_runs
),
lengths as (
    select coalesce(pg_total_relation_size('stage_ledger') / nullif((select reltuples from pg_class where oid = 'stage_ledger'::regclass), 0), 0)
               as ledger_row,
           coalesce(pg_total_relation_size('filter_decisions')
                    / nullif((select reltuples from pg_class where oid = 'filter_decisions'::regclass), 0), 0) as decision_row
)
select stage, tool, recipe_id, documents, partition_bytes,
       greatest(documents * ledger_row + decisions * decision_row, 0)::bigint as row_bytes
from counted
cross join lengths
where documents > 0 or decisions > 0 or partition_bytes > 0
order by tool, array_position(array['filter', 'sample', 'execute', 'score', 'placebo'], stage), recipe_id
