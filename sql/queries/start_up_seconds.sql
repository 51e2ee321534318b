-- The median of what the newest 20 processes took to start: those that filtered, or those that loaded the model; null where there is none.
select percentile_cont(0.5) within group (order by start_up_seconds) as seconds
from (
    select b.start_up_seconds
    from micro_batches b
    join annotation_runs r using (run_id)
    where b.start_up_seconds is not null
      and case when cast(:model_identity as text) is null then b.stage = 'filter'
               else b.stage <> 'filter' and r.model_identity = :model_identity end
    order by b.batch_id desc
    limit 20
) newest
