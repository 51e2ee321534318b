-- A run belongs to the DAG run that opened it: a run id can be used by two DAGs, and again after a DAG run was deleted.

alter table annotation_runs
    add column dag_id        text,
    add column dag_run_after timestamptz,
    add column ended_hash    uuid,
    add constraint a_dag_run_has_both_parts_of_its_key check ((coalesce(dag_id, '') = '') = (dag_run_after is null));
comment on column annotation_runs.dag_id is 'The DAG whose run opened this one; empty for the command line. Null for a run from before this was stored.';
comment on column annotation_runs.dag_run_after is 'When Airflow was to start that DAG run (run_after, UTC): with the DAG and the run''s id it names one DAG run, also where an earlier one of the id was deleted. Null for the command line.';
comment on column annotation_runs.ended_hash is 'ending_hash of the row as the run ended. Null before that, and for a run that ended before this was stored.';
