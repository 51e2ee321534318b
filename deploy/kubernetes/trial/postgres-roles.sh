#!/usr/bin/env bash
# Run once by the postgres image, as its superuser, when its volume is empty: the roles and databases that
# `toolformer_ops/local/postgres.py` makes for the embedded Postgres. Passwords come from the container's environment.
set -euo pipefail

psql --no-psqlrc --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname=postgres <<'SQL'
\getenv owner_password TOOLFORMER_OWNER_PASSWORD
\getenv reader_password TOOLFORMER_READER_PASSWORD
\getenv page_password TOOLFORMER_PAGE_PASSWORD
\getenv reviewer_password TOOLFORMER_REVIEWER_PASSWORD
\getenv airflow_password AIRFLOW_DATABASE_PASSWORD
create role toolformer login password :'owner_password';
create role toolformer_reader login password :'reader_password';
create role toolformer_page login password :'page_password';
create role toolformer_reviewer login password :'reviewer_password';
create role toolformer_analyst; -- alter role toolformer_analyst login password '...' lets analysts in
create role airflow login password :'airflow_password';
create database toolformer owner toolformer;
create database airflow owner airflow;
revoke all on database toolformer, airflow from public;
grant connect on database toolformer to toolformer_reader, toolformer_page, toolformer_analyst, toolformer_reviewer;
grant toolformer_analyst to toolformer;
SQL
# Limits of the roles that read, where they are mounted, as docker-compose.yml does.
[ ! -f /reader_limits.sql ] || psql --no-psqlrc --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname=toolformer --file=/reader_limits.sql
