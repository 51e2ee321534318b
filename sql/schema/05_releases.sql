-- Published data sets, the calls in them, and what people say of these.

create table published_artifacts (
    uri             text primary key,
    kind            text not null check (kind in ('model', 'index')),
    identity        text not null,
    manifest_sha256 text not null,
    bytes           bigint not null check (bytes >= 0),
    source          text not null,
    published_at    timestamptz not null default now()
);
create index on published_artifacts (kind, published_at);
comment on table published_artifacts is 'Models and search indices on S3. The newest index is the one that pods search. Writer: storage/objects/artifacts.py.';
comment on column published_artifacts.uri is 'Where it is: s3://bucket/prefix.';
comment on column published_artifacts.kind is 'model or index.';
comment on column published_artifacts.identity is 'What recipes call it: name@content hash or hub id@revision of a model, the fingerprint of an index.';
comment on column published_artifacts.manifest_sha256 is 'sha256 of its manifest: another manifest at this address is refused.';
comment on column published_artifacts.bytes is 'Size of all its files.';
comment on column published_artifacts.source is 'What it was made from: a folder, a hub id with its revision, or the address of a Wikipedia.';
comment on column published_artifacts.published_at is 'When it was published last: publishing the same again makes it the newest.';

create table dataset_releases (
    release_id      text primary key check (release_id <> ''),
    run_id          text not null references annotation_runs,
    uri             text not null,
    manifest_sha256 text not null,
    documents       integer not null check (documents >= 0),
    calls           integer not null check (calls >= 0),
    lacking_tools   text[] not null default '{}',
    created_at      timestamptz not null default now(),
    withdrawn_at    timestamptz,
    definition      jsonb check (jsonb_typeof(definition) = 'object'),
    rates           jsonb
);
comment on table dataset_releases is 'One row a released data set, written after its manifest.';
comment on column dataset_releases.release_id is 'The release''s name.';
comment on column dataset_releases.run_id is 'The run that made it.';
comment on column dataset_releases.uri is 'Address of the release, s3://bucket/prefix.';
comment on column dataset_releases.manifest_sha256 is 'sha256 of its manifest.';
comment on column dataset_releases.documents is 'Number of texts with at least one call.';
comment on column dataset_releases.calls is 'Number of calls.';
comment on column dataset_releases.lacking_tools is 'Tools of the run that failed and are not in it.';
comment on column dataset_releases.created_at is 'When it was registered.';
comment on column dataset_releases.withdrawn_at is 'When its files were deleted from S3 (`toolformer-ops forget --release`); null while they are there. The row stays, as the record of what was released.';
comment on column dataset_releases.definition is 'What the release''s id is the hash of besides its texts and calls: model, tools with their recipes and thresholds, choices.';
comment on column dataset_releases.rates is 'False-discovery rates on its card, by tool, each with its interval and the number of placebos that it rests on: those of the run that made it first. The rates of each run are in threshold_counts. Null where the card is not known.';
alter table annotation_runs add foreign key (chained_release_id) references dataset_releases;

create table run_releases (
    run_id      text primary key references annotation_runs,
    release_id  text not null references dataset_releases,
    released_at timestamptz not null default now(),
    left_out    jsonb not null default '{}' check (jsonb_typeof(left_out) = 'object')
);
comment on table run_releases is 'The release of each run, and what it leaves out. Writer: stages/release.py.';
comment on column run_releases.run_id is 'The run.';
comment on column run_releases.release_id is 'Its release: the newest, where a run was released again after a failed tool was repaired.';
comment on column run_releases.released_at is 'When the run was released last.';
comment on column run_releases.left_out is 'Number of kept calls that the release leaves out, by tool and reason: {"Calculator": {"better_call_at_position": 2, "above_max_examples": 1, "holds_evaluation_data": 3}}.';

create table release_calls (
    release_id        text references dataset_releases,
    document_id       uuid not null,
    call_id           uuid,
    scoring_recipe_id text not null,
    tool              text not null,
    primary key (release_id, call_id)
);
create index on release_calls (release_id, document_id);
comment on table release_calls is 'Which calls a release holds.';
comment on column release_calls.release_id is 'The release.';
comment on column release_calls.document_id is 'The text that holds the call.';
comment on column release_calls.call_id is 'The call, as in candidate_calls.';
comment on column release_calls.scoring_recipe_id is 'Where its losses are: key of call_losses with call_id.';
comment on column release_calls.tool is 'The tool''s name.';

create table chained_texts (
    release_id         text,
    document_id        uuid,
    source_document_id uuid not null,
    primary key (release_id, document_id)
);
create index on chained_texts (source_document_id);
comment on table chained_texts is 'Texts of a release, calls included, over which a run with chains went: what they were without calls. Writer: stages/filtering.py.';
comment on column chained_texts.release_id is 'The release.';
comment on column chained_texts.document_id is 'The text with its calls, as documents has it.';
comment on column chained_texts.source_document_id is 'The text without them: release_calls.document_id of the release.';

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
create index on judgements (document_id);
create index on judgements (release_id, reviewer);
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

create table run_overlaps (
    run_id        text references annotation_runs,
    document_id   uuid,
    suite         text,
    data_set      text,
    question      integer check (question >= 1),
    words         text not null,
    shared_ngrams integer not null check (shared_ngrams >= 1),
    is_left_out   boolean not null,
    primary key (run_id, document_id, suite, data_set, question)
);
create index on run_overlaps (document_id);
comment on table run_overlaps is 'The texts of a run that share word n-grams with evaluation data (decontaminate), each with the questions that it shares them with. A paragraph or n-gram of several questions is the first one''s. Writer: stages/release.py.';
comment on column run_overlaps.run_id is 'The run.';
comment on column run_overlaps.document_id is 'The text.';
comment on column run_overlaps.suite is 'The suite of the evaluation, such as math.';
comment on column run_overlaps.data_set is 'The data set, such as gsm8k.';
comment on column run_overlaps.question is 'The question''s place in the data set, from 1.';
comment on column run_overlaps.words is 'The shared n-gram that comes first in the text: its words in lower case, without punctuation.';
comment on column run_overlaps.shared_ngrams is 'How many different n-grams of the question the text holds.';
comment on column run_overlaps.is_left_out is 'Whether the run''s release does without the text for it.';
comment on column run_releases.left_out is 'Number of kept calls that the release leaves out, by tool and reason: {"Calculator": {"better_call_at_position": 2, "above_max_examples": 1, "holds_evaluation_data": 3}}.';

create table release_choices (
    release_id  text,
    document_id uuid not null,
    call_id     uuid,
    left_out    text,
    primary key (release_id, call_id)
);
comment on table release_choices is 'Why a release takes or leaves each kept call that it may hold, of the texts among which it chose. A text beyond the most examples of its tools has none. Writer: stages/release.py, before the release is published.';
comment on column release_choices.release_id is 'The release.';
comment on column release_choices.document_id is 'The text.';
comment on column release_choices.call_id is 'The call, as in candidate_calls.';
comment on column release_choices.left_out is 'Why the release does not hold it: result_does_not_follow, better_call_at_position, above_max_examples or holds_evaluation_data, as in candidates.release_outcome. Null for a call that it holds.';
