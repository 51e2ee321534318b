-- Two writers have moved; a comment names the file that writes.

comment on table bundle_versions is 'Every content of a DAG bundle: the schedule files, or the DAG files of this package, each with the tools that had tasks then. Airflow shows the version of a run as its bundle version. Writer: airflow_tasks/bundles/versioned_bundle.py.';
comment on table notifications is 'Who was told of the end of a run of a schedule. Writer: airflow_tasks/nights/notifying.py.';
