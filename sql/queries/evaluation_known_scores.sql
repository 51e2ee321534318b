-- What of a suite is scored already in a run.
select subset, model, variant, call_start_rank, inputs, data_sha256, calendar_date
from evaluation_scores
where run_id = :run_id and suite = :suite
