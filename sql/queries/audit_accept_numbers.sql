-- Store numbers of a run that were counted again, in place of those in the tables that are named.
delete from finished_run_thresholds where run_id = :run_id and 'finished_run_numbers' = any(cast(:relations as text[]));
insert into finished_run_thresholds select * from jsonb_populate_recordset(cast(null as finished_run_thresholds), cast(:numbers as jsonb) -> 'finished_run_thresholds')
where 'finished_run_numbers' = any(cast(:relations as text[]));
delete from finished_run_reductions where run_id = :run_id and 'finished_run_numbers' = any(cast(:relations as text[]));
insert into finished_run_reductions select * from jsonb_populate_recordset(cast(null as finished_run_reductions), cast(:numbers as jsonb) -> 'finished_run_reductions')
where 'finished_run_numbers' = any(cast(:relations as text[]));
delete from finished_run_progress where run_id = :run_id and 'finished_run_numbers' = any(cast(:relations as text[]));
insert into finished_run_progress select * from jsonb_populate_recordset(cast(null as finished_run_progress), cast(:numbers as jsonb) -> 'finished_run_progress')
where 'finished_run_numbers' = any(cast(:relations as text[]));
delete from finished_run_yield where run_id = :run_id and 'finished_run_numbers' = any(cast(:relations as text[]));
insert into finished_run_yield select * from jsonb_populate_recordset(cast(null as finished_run_yield), cast(:numbers as jsonb) -> 'finished_run_yield')
where 'finished_run_numbers' = any(cast(:relations as text[]));
delete from finished_run_work where run_id = :run_id and 'finished_run_numbers' = any(cast(:relations as text[]));
insert into finished_run_work select * from jsonb_populate_recordset(cast(null as finished_run_work), cast(:numbers as jsonb) -> 'finished_run_work')
where 'finished_run_numbers' = any(cast(:relations as text[]));
delete from checked_yields where run_id = :run_id and 'checked_yields' = any(cast(:relations as text[]));
insert into checked_yields select * from jsonb_populate_recordset(cast(null as checked_yields), cast(:numbers as jsonb) -> 'checked_yields')
where 'checked_yields' = any(cast(:relations as text[]));
delete from placebo_counts where run_id = :run_id and 'placebo_counts' = any(cast(:relations as text[]));
insert into placebo_counts select * from jsonb_populate_recordset(cast(null as placebo_counts), cast(:numbers as jsonb) -> 'placebo_counts')
where 'placebo_counts' = any(cast(:relations as text[]));
delete from placebo_rates where run_id = :run_id and 'placebo_rates' = any(cast(:relations as text[]));
insert into placebo_rates select * from jsonb_populate_recordset(cast(null as placebo_rates), cast(:numbers as jsonb) -> 'placebo_rates')
where 'placebo_rates' = any(cast(:relations as text[]))
