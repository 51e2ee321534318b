-- How many texts of a run's release are new, gone or hold other calls, against the release that another run of its schedule finetuned
-- on last; all of them where none did.
with finetuned as (
    select model.release_id
    from run_models made
    join finetuned_models model on model.model_id = made.model_id
    join annotation_runs earlier on earlier.run_id = made.run_id
    where made.run_id <> :run_id
      and earlier.schedule = (select schedule from annotation_runs where run_id = :run_id)
    order by made.published_at desc
    limit 1
),
old as (
    select document_id, call_id from release_calls where release_id = (select release_id from finetuned)
),
new as (
    select calls.document_id, calls.call_id
    from run_releases made
    join release_calls calls on calls.release_id = made.release_id
    where made.run_id = :run_id
),
different as (
    (select * from new except all select * from old)
    union all
    (select * from old except all select * from new)
)
select count(distinct document_id) as examples from different
