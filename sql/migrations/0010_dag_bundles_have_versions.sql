-- The DAGs of `dags/` have versions as schedule files have: a run keeps the tools that it started with.

alter table schedule_versions rename to bundle_versions;
alter index schedule_versions_pkey rename to bundle_versions_pkey;
comment on table bundle_versions is 'Every content of a DAG bundle: the schedule files, or the DAG files of this package, each with the tools that had tasks then. Airflow shows the version of a run as its bundle version. Writer: airflow_tasks/versioned_bundle.py.';
comment on column bundle_versions.version is 'Hash of the names and contents of all files of the bundle.';
comment on column bundle_versions.name is 'Name of a schedule, without .toml; else the name of the file: a DAG file, or tools.json.';
comment on column bundle_versions.content is 'The bytes of the file.';
comment on column bundle_versions.seen_at is 'When the bundle was last found to have become this version.';
