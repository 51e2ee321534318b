-- The n_distinct of migration 0065 counts from the next analyze on.
analyze candidate_calls (call_id);
analyze call_losses (call_id);
analyze placebo_losses (call_id);
