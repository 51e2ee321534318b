-- One score; a second one of the same thing is not written.
insert into evaluation_scores
    (run_id, suite, subset, model, model_id, variant, call_start_rank, metric, inputs, score, low, high, call_shares,
     inputs_with_call, score_with_call, score_without_call, seconds, data_sha256, calendar_date, inputs_uri, inputs_sha256)
values
    (:run_id, :suite, :subset, :model, :model_id, :variant, :call_start_rank, :metric, :inputs, :score, :low, :high, :call_shares,
     :inputs_with_call, :score_with_call, :score_without_call, :seconds, :data_sha256, :calendar_date, :inputs_uri, :inputs_sha256)
on conflict do nothing
