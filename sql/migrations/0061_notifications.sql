-- People are told of a night by a task that looks here for what ended, however it ended, and for whom was told of it already.

alter table annotation_runs add column problem text;
comment on column annotation_runs.problem is 'Which tasks failed, or how the run was ended. Null for a success, and before the end.';

create table notifications (
    run_id        text not null,
    ended_at      timestamptz not null,
    connection_id text not null,
    told_at       timestamptz not null default now(),
    primary key (run_id, ended_at, connection_id)
);
comment on table notifications is 'Who was told of the end of a run of a schedule. Writer: orchestration/notifying.py.';
comment on column notifications.run_id is 'As in annotation_runs or runs_not_started.';
comment on column notifications.ended_at is 'Which end, where the run was cleared and ended again: finished_at, or ended_at.';
comment on column notifications.connection_id is 'The Airflow Connection that took the message; empty once nobody is left to be told.';
comment on column notifications.told_at is 'When it took the message.';

-- Nobody is told of what ended before.
insert into notifications (run_id, ended_at, connection_id)
select run_id, finished_at, '' from annotation_runs where finished_at is not null
union all
select run_id, ended_at, '' from runs_not_started;
