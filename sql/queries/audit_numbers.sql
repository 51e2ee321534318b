-- The stored numbers of a run, by table.
select jsonb_build_object(
    'finished_run_thresholds', (select coalesce(jsonb_agg(to_jsonb(stored)), '[]') from finished_run_thresholds stored where run_id = :run_id),
    'finished_run_reductions', (select coalesce(jsonb_agg(to_jsonb(stored)), '[]') from finished_run_reductions stored where run_id = :run_id),
    'finished_run_progress', (select coalesce(jsonb_agg(to_jsonb(stored)), '[]') from finished_run_progress stored where run_id = :run_id),
    'finished_run_yield', (select coalesce(jsonb_agg(to_jsonb(stored)), '[]') from finished_run_yield stored where run_id = :run_id),
    'finished_run_work', (select coalesce(jsonb_agg(to_jsonb(stored)), '[]') from finished_run_work stored where run_id = :run_id),
    'checked_yields', (select coalesce(jsonb_agg(to_jsonb(stored)), '[]') from checked_yields stored where run_id = :run_id),
    'placebo_counts', (select coalesce(jsonb_agg(to_jsonb(stored)), '[]') from placebo_counts stored where run_id = :run_id),
    'placebo_rates', (select coalesce(jsonb_agg(to_jsonb(stored)), '[]') from placebo_rates stored where run_id = :run_id)
) as numbers
