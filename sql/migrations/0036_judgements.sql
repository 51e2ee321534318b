-- What people said of released calls and of placebos, shown to them one by one without losses. Rows are only ever added: the role of the
-- page that writes them (sql/reviewer_role.sql) may do nothing else. Writer: run_page/reviewing.py.

create table judgements (
    submission_id     uuid primary key,
    release_id        text not null references dataset_releases,
    seed              integer not null,
    tool              text not null,
    document_id       uuid not null,
    call_id           uuid not null,
    scoring_recipe_id text not null,
    is_placebo        boolean not null,
    source_call_id    uuid,
    reviewer          text not null check (reviewer <> '' and length(reviewer) <= 250),
    verdict           text not null check (verdict in ('useful', 'useless', 'wrong', 'skip')),
    judged_at         timestamptz not null default now(),
    constraint a_placebo_has_a_source check (is_placebo = (source_call_id is not null))
);
create index on judgements (release_id, reviewer);
create index on judgements (document_id);
comment on table judgements is 'What reviewers said of the calls of a release, and of placebos among them: one row each time. Of several by one reviewer on one call the newest counts (the view counted_judgements). Rows are only added; `toolformer-ops forget` deletes those of a text. Writer: run_page/reviewing.py.';
comment on column judgements.submission_id is 'Made for the form that was sent: the same form sent twice is one row.';
comment on column judgements.release_id is 'The release whose call was shown.';
comment on column judgements.seed is 'The seed that the sample was drawn by: equal seeds show equal calls.';
comment on column judgements.tool is 'The tool''s name.';
comment on column judgements.document_id is 'The text.';
comment on column judgements.call_id is 'The call, as in release_calls.';
comment on column judgements.scoring_recipe_id is 'Where its losses are: key of call_losses.';
comment on column judgements.is_placebo is 'Whether the result of another call was shown in its place. The reviewer was not told.';
comment on column judgements.source_call_id is 'Of a placebo: the call whose result was shown.';
comment on column judgements.reviewer is 'The name by which the reviewer is signed in to Airflow.';
comment on column judgements.verdict is 'useful, useless (it adds nothing to the text), wrong (the result or the call is false), or skip.';
comment on column judgements.judged_at is 'When.';
