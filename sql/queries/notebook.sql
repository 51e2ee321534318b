-- What a notebook asks of a run, by the reader's role.

-- name: run
-- The run with this id, if it has started.
select run_id, state from annotation_runs where run_id = :run_id

-- name: kept_calls
-- The kept calls that save most.
select * from kept_calls_of(:run_id)
order by loss_reduction desc, document_uuid, position_char, call_text
limit :at_most

-- name: yield_by_stage
-- What each stage of a run counted, and what left it under which reason.
select * from yield_by_stage where run_id = :run_id
