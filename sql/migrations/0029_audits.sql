-- Audits: what was looked at, how far, and what was found. Writer: audit/. And what a release's id is the hash of, so that an audit can
-- compute it again. Writer: stages/release.py.

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
    audit_id    bigint not null references audits on delete cascade,
    check_name  text not null,
    subject     text not null,
    position    text not null default '',
    items       bigint not null default 0 check (items >= 0),
    unprovable  bigint not null default 0 check (unprovable between 0 and items),
    seconds     double precision not null default 0 check (seconds >= 0),
    finished_at timestamptz,
    primary key (audit_id, check_name, subject)
);
comment on table audit_checks is 'How far an audit is: one row for each check of a recipe, corpus, release or other subject. Writer: audit/auditing.py.';
comment on column audit_checks.audit_id is 'The audit.';
comment on column audit_checks.check_name is 'The check.';
comment on column audit_checks.subject is 'What was checked: a recipe, a corpus, a run, a release, a model, or empty for all.';
comment on column audit_checks.position is 'The last key that was looked at: an interrupted audit continues after it.';
comment on column audit_checks.items is 'Documents, recipes, runs or objects that were looked at.';
comment on column audit_checks.unprovable is 'Those of them that hold nothing to compare with, such as ledger rows without a hash from before migration 0028.';
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

alter table dataset_releases add column definition jsonb check (jsonb_typeof(definition) = 'object');
comment on column dataset_releases.definition is 'What the release''s id is the hash of besides its texts and calls: model, tools with their recipes and thresholds, choices. Null for releases from before migration 0029 that were not released again.';

-- The ids of rows, as records.content_uuid makes them in Python.

create function hashed_part(part text)
    returns bytea
    language sql immutable parallel safe
    return int8send(octet_length(convert_to(part, 'UTF8'))) || convert_to(part, 'UTF8');
comment on function hashed_part(text) is 'One part of what an id is the hash of: its length in bytes, and its bytes.';

create function content_uuid(parts bytea)
    returns uuid
    language sql immutable parallel safe
    return cast(encode(substring(sha256(parts) from 1 for 16), 'hex') as uuid);
comment on function content_uuid(bytea) is 'Id made of content: first 128 bits of the sha256 of parts that hashed_part made, joined. The same as records.content_uuid in Python.';
