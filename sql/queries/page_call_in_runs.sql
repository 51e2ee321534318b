-- The same call (text, place, tool and call) in the newest other runs over the corpus, of these DAGs.
with others as (
    select run.run_id, run.schedule, run.started_at, rt.sampling_recipe_id, rt.scoring_recipe_id, rt.keep_threshold,
           coalesce('nightly_' || run.schedule, 'annotate_corpus') as dag_id
    from annotation_runs run
    join run_tools rt on rt.run_id = run.run_id and rt.tool = :tool
    where run.corpus_id = :corpus_id and run.run_id <> :run_id
    order by run.started_at desc
    limit 20
)
select others.run_id, others.dag_id, others.started_at, others.keep_threshold, call.call_id, loss.result, loss.reason, loss.loss_reduction,
       loss.reduction_bound, others.scoring_recipe_id = :scoring_recipe_id as is_same_row,
       exists (
           select from run_releases made
           join release_calls held on held.release_id = made.release_id and held.call_id = call.call_id
           where made.run_id = others.run_id) as is_released
from others
left join lateral (
    with sampled as (select call_id from candidate_calls
                     where sampling_recipe_id = others.sampling_recipe_id and document_id = cast(:document_id as uuid)
                       and position_char = :position_char and call_text = :call_text)
    select call_id from sampled limit 1
) call on true
left join lateral (
    with scored as (select result, reason, loss_reduction, reduction_bound from call_losses
                    where scoring_recipe_id = others.scoring_recipe_id and document_id = cast(:document_id as uuid)
                      and call_losses.call_id = call.call_id)
    select * from scored
) loss on true
where others.dag_id = any (cast(:dag_ids as text[]))
order by others.started_at desc
