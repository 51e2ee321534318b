-- Views of analysts that a migration could not make again.

create table lost_views (
    name       text,
    lost_at    timestamptz default now(),
    owner      text not null,
    statements text not null,
    problem    text not null,
    primary key (name, lost_at)
);
comment on table lost_views is 'Views and functions of people on ours that a migration dropped and could not make again. Nothing of them is lost: correct the statements and run them. Writer: storage/dependent_views.py.';
comment on column lost_views.name is 'The view with its schema, or the function with its arguments.';
comment on column lost_views.lost_at is 'When the migration dropped it.';
comment on column lost_views.owner is 'Whose it was.';
comment on column lost_views.statements is 'What makes it again, with its comments and grants.';
comment on column lost_views.problem is 'What Postgres said.';
