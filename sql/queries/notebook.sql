-- What a notebook asks of a run, by the reader's role.

-- name: run
-- The run with this id, if it has started.
select run_id, state from annotation_runs where run_id = :run_id

-- name: kept_calls
-- The kept calls that save most.
select * from kept_calls_of(:run_id)
order by gain desc, document_uuid, position_char, call_text
limit :at_most

-- name: candidates
-- The candidate calls, the kept ones first, and what became of each.
select * from candidates_of(:run_id)
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

-- name: thresholds
-- How many calls other thresholds would keep.
select * from what_would_another_threshold_keep(:run_id)

-- name: about_run
-- From now on in this transaction functions that name no run are about this one.
select set_config('toolformer.run', :run_id, true), set_config('statement_timeout', '60s', true)

-- name: yield_by_stage
-- What each stage of a run counted, and what left it under which reason.
select * from yield_by_stage where run_id = :run_id
