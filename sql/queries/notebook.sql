-- What a notebook asks of a run, by the reader's role.

-- name: run
-- The run with this id, if it has started.
select run_id, state from annotation_runs where run_id = :run_id

-- name: calls
-- The candidate calls, or the kept ones alone, and what became of each.
select *, outcome = 'kept' as kept from candidates_of(:run_id)
where not :only_kept or outcome = 'kept'
order by gain desc nulls last, document_uuid, position_char, call_text
limit :at_most

-- name: texts
-- The texts of a run, in the order of the corpus.
select cast(member.document_id as text) as document_id, document.text, document.url, document.document_date
from run_documents member
join documents document on document.document_id = member.variant_id
where member.run_id = :run_id
order by member.ordinal
limit :at_most

-- name: at_threshold
-- How many calls a threshold would keep; without one, several thresholds.
select * from what_would_another_threshold_keep(:run_id, cast(:at_least as double precision))

-- name: about_run
-- From now on in this transaction functions that name no run are about this one.
select set_config('toolformer.run', :run_id, true), set_config('statement_timeout', '60s', true)
