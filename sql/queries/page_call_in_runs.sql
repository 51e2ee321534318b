-- The same call (text, place, tool and call) in the newest other runs over the corpus, of these DAGs.
with others as (
    select run.run_id, run.started_at, coalesce('nightly_' || run.schedule, 'annotate_corpus') as dag_id
    from annotation_runs run
    join run_tools rt on rt.run_id = run.run_id and rt.tool = :tool
    where run.corpus_id = :corpus_id and run.run_id <> :run_id
    order by run.started_at desc
    limit 20
)
select others.*, call.call_id, call.result, call.outcome, call.reason, call.release_outcome, call.loss_reduction,
       call.scoring_recipe_id = :scoring_recipe_id as is_same_row
from others
left join lateral (
    select *
    from candidates
    where run_id = others.run_id and tool = :tool and document_id = cast(:document_id as uuid) and variant_id = cast(:variant_id as uuid)
      and position_char = :position_char
      and call_text = :call_text
    limit 1
) call on true
where others.dag_id = any (cast(:dag_ids as text[]))
order by others.started_at desc
