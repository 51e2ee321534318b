-- What the texts of a run's release share with evaluation data.

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
