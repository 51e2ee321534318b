-- The modules that write these tables stand in other folders of the package.

comment on table schedule_versions is 'Every content that the folder of schedule files had. Airflow shows the version of a run as its bundle version. Writer: airflow_tasks/schedule_bundle.py.';
comment on table notifications is 'Who was told of the end of a run of a schedule. Writer: airflow_tasks/notifying.py.';
comment on table published_artifacts is 'Models and search indices on S3. The newest index is the one that pods search. Writer: storage/artifacts/published.py.';
comment on table finished_work is 'What a recipe has finished: every document that the corpus holds at this version below the ordinal limit has its ledger row, and its rows passed the checks. Later runs look at what joined the corpus since. Writer: audit/checking.py.';
comment on table checked_yields is 'What each run''s passed check of a tool counted. The check of a later version of the corpus adds what joined and subtracts what left. Writer: audit/checking.py.';
