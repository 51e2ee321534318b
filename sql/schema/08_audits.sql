-- What checks and audits found.

create table quality_results (
    run_id     text references annotation_runs,
    subject    text,
    check_name text,
    severity   text not null check (severity in ('fail', 'warn')),
    success    boolean not null,
    observed   jsonb not null default '{}',
    message    text not null default '',
    checked_at timestamptz not null default now(),
    primary key (run_id, subject, check_name)
);
comment on table quality_results is 'One row a check: its newest outcome.';
comment on column quality_results.run_id is 'The run.';
comment on column quality_results.subject is 'What was checked: a tool''s name, or release.';
comment on column quality_results.check_name is 'The check''s name.';
comment on column quality_results.severity is 'fail stops the run where the check does not succeed, warn reports.';
comment on column quality_results.success is 'Whether it succeeded.';
comment on column quality_results.observed is 'What was seen: counts, bounds, examples of offending rows.';
comment on column quality_results.message is 'One sentence for people.';
comment on column quality_results.checked_at is 'When it was checked last.';

create table audits (
    audit_id    bigint generated always as identity primary key,
    scope       text not null check (scope in ('all', 'corpus', 'run', 'release', 'model')),
    scope_id    text not null default '',
    started_at  timestamptz not null default now(),
    finished_at timestamptz
);
create index on audits (scope, scope_id) where finished_at is null;
comment on table audits is 'One row for each audit (`toolformer-ops audit`). Writer: audit/auditing.py.';
comment on column audits.audit_id is 'Number of the audit.';
comment on column audits.scope is 'What was audited: all, or one corpus, run, release or model.';
comment on column audits.scope_id is 'Id of the corpus, run, release or model; empty for all.';
comment on column audits.started_at is 'When it started.';
comment on column audits.finished_at is 'When it ended; null for one that is at work or was interrupted: the next audit of the same scope continues it.';

create table audit_checks (
    audit_id    bigint references audits on delete cascade,
    check_name  text,
    subject     text,
    position    text not null default '',
    items       bigint not null default 0 check (items >= 0),
    unprovable  bigint not null default 0,
    seconds     double precision not null default 0 check (seconds >= 0),
    finished_at timestamptz,
    primary key (audit_id, check_name, subject),
    check (unprovable >= 0 and unprovable <= items)
);
comment on table audit_checks is 'How far an audit is: one row for each check of a recipe, corpus, release or other subject. Writer: audit/auditing.py.';
comment on column audit_checks.audit_id is 'The audit.';
comment on column audit_checks.check_name is 'The check.';
comment on column audit_checks.subject is 'What was checked: a recipe, a corpus, a run, a release, a model, or empty for all.';
comment on column audit_checks.position is 'The last key that was looked at: an interrupted audit continues after it.';
comment on column audit_checks.items is 'Documents, recipes, runs or objects that were looked at.';
comment on column audit_checks.unprovable is 'Those of them that hold nothing to compare with.';
comment on column audit_checks.seconds is 'Seconds that it took.';
comment on column audit_checks.finished_at is 'When it ended; null before that.';

create table audit_findings (
    finding_id  bigint generated always as identity primary key,
    audit_id    bigint not null references audits on delete cascade,
    check_name  text not null,
    kind        text not null check (kind in ('lost', 'doubled', 'changed', 'orphaned')),
    relation    text not null,
    place       text not null,
    what        text not null,
    remedy      text not null,
    repair      jsonb check (jsonb_typeof(repair) = 'object'),
    found_at    timestamptz not null default now(),
    repaired_at timestamptz,
    unique (audit_id, relation, place)
);
comment on table audit_findings is 'What audits found to be wrong: one row for each place. Writer: audit/auditing.py.';
comment on column audit_findings.finding_id is 'Number of the finding.';
comment on column audit_findings.audit_id is 'The audit that found it.';
comment on column audit_findings.check_name is 'The check that found it.';
comment on column audit_findings.kind is 'lost: it was there and is not. doubled: it is there too often. changed: it is not what was written. orphaned: nothing knows it.';
comment on column audit_findings.relation is 'The table, or object (on S3) or folder (on this machine).';
comment on column audit_findings.place is 'Where: a document, recipe, run, corpus or address.';
comment on column audit_findings.what is 'What was expected, and what was found.';
comment on column audit_findings.remedy is 'What to do.';
comment on column audit_findings.repair is 'What `toolformer-ops audit --repair` does about it; null where it can do nothing.';
comment on column audit_findings.found_at is 'When it was found.';
comment on column audit_findings.repaired_at is 'When it was repaired; null where it was not.';

create table lost_views (
    name       text,
    lost_at    timestamptz default now(),
    owner      text not null,
    statements text not null,
    problem    text not null,
    primary key (name, lost_at)
);
comment on table lost_views is 'Views and functions of people on ours that a migration dropped and could not make again. Nothing of them is lost: correct the statements and run them. Writer: storage/postgres/dependent_views.py.';
comment on column lost_views.name is 'The view with its schema, or the function with its arguments.';
comment on column lost_views.lost_at is 'When the migration dropped it.';
comment on column lost_views.owner is 'Whose it was.';
comment on column lost_views.statements is 'What makes it again, with its comments and grants.';
comment on column lost_views.problem is 'What Postgres said.';
