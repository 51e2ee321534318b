-- Texts of the calls of two runs that are compared: those that only the newer one has, those that only the older one has, and those of both
-- with other calls.
with now as (
    select distinct document_id from calls_to_compare(:run_id, cast(:before_run_id as text))
),
before as (
    select distinct document_id from calls_to_compare(cast(:before_run_id as text), :run_id)
),
touched as (
    select distinct document_id from compared_calls
)
select count(*) filter (where before.document_id is null) as added,
       count(*) filter (where now.document_id is null) as removed,
       count(*) filter (where now.document_id is not null and before.document_id is not null and touched.document_id is not null) as changed
from now
full join before using (document_id)
left join touched using (document_id)
