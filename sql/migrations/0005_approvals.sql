-- Who said yes or no before a model was finetuned or published.

create table approvals (
    run_id      text references annotation_runs,
    step        text check (step in ('before_finetuning', 'before_publishing')),
    is_approved boolean not null,
    answered_by text,
    answered_at timestamptz not null,
    max_tries   integer not null,
    primary key (run_id, step)
);
comment on table approvals is 'What was asked of a person before a run went on (approve), and the answer. Of a task that was cleared the newest. Writer: airflow_tasks/approval.py.';
comment on column approvals.run_id is 'The run.';
comment on column approvals.step is 'What waited for the answer.';
comment on column approvals.is_approved is 'The answer. A no skips what follows.';
comment on column approvals.answered_by is 'Name of the person, as Airflow knows it; null if nobody answered in time, which counts as a no.';
comment on column approvals.answered_at is 'When Airflow took the answer.';
comment on column approvals.max_tries is 'Most tries that the task had when it was answered. Airflow raises it if somebody clears the task, and not for a retry: so a retry takes the answer, and a cleared task asks anew.';
