-- A run that failed before its start-run was known to Airflow alone.

create table runs_not_started (
    run_id   text primary key,
    problem  text not null,
    ended_at timestamptz not null default now()
);
comment on table runs_not_started is 'Runs that ended before they had a row in annotation_runs: their corpus was not read, or their choices were refused. A run that starts after all leaves this table. Writer: stages/run_setup.py.';
comment on column runs_not_started.run_id is 'As in annotation_runs.';
comment on column runs_not_started.problem is 'Which tasks failed; their logs in Airflow say why.';
comment on column runs_not_started.ended_at is 'When it ended; the last time, where it was tried again.';
