-- A run of a schedule keeps the DAG that it started with: Airflow names its version, and a worker makes the DAG file from these rows.

create table schedule_versions (
    version  text not null,
    name     text not null,
    content  bytea not null,
    seen_at  timestamptz not null default now(),
    primary key (version, name)
);
comment on table schedule_versions is 'Every content that the folder of schedule files had. Airflow shows the version of a run as its bundle version. Writer: orchestration/schedule_bundle.py.';
comment on column schedule_versions.version is 'Hash of the names and contents of all files of the folder.';
comment on column schedule_versions.name is 'Name of a schedule: that of its file, without .toml.';
comment on column schedule_versions.content is 'The bytes of the file.';
comment on column schedule_versions.seen_at is 'When the folder was last found to have become this version.';
