-- The files of sql/schema, sql/migrations, sql/functions and sql/views that this database was made with.
create table if not exists schema_files (
    name       text primary key,
    sha256     text not null,
    applied_at timestamptz not null default now()
)
