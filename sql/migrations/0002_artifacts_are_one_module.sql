-- The module that writes this table is one file now.

comment on table published_artifacts is 'Models and search indices on S3. The newest index is the one that pods search. Writer: storage/artifacts.py.';
