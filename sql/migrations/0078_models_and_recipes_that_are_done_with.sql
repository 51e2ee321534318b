-- A person says that no next night needs a model or a recipe, such as one that a schedule no longer names.

create table done_with (
    name    text primary key check (name <> ''),
    said_at timestamptz not null default now()
);
comment on table done_with is 'Models and recipes that no next night needs, as a person said: runs that were started before are not kept for the next night by retention. Writer: storage/retention.py.';
comment on column done_with.name is 'As annotation_runs.model_identity, or as recipes.recipe_id.';
comment on column done_with.said_at is 'When it was said last; a run that starts later counts again.';
