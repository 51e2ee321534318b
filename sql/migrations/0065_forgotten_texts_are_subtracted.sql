-- A later run's numbers follow from those of an earlier one also after texts were forgotten: what they had of the sums is subtracted.

create table forgotten_numbers (
    number       bigint generated always as identity primary key,
    run_id       text not null,
    tool         text not null,
    kind         text not null check (kind in ('finished_run', 'placebo_counts')),
    document_ids uuid[] not null,
    numbers      jsonb not null,
    forgotten_at timestamptz not null default now(),
    foreign key (run_id, tool) references run_tools
);
create index on forgotten_numbers (run_id, tool);
comment on table forgotten_numbers is 'What texts that were forgotten had of the stored numbers of a run, for later runs whose numbers follow from these: of each recipe, keep rule and document limit for the newest run. The numbers of the run itself, which people see, do not change. Writer: storage/forgetting.py.';
comment on column forgotten_numbers.number is 'In the order in which they were forgotten.';
comment on column forgotten_numbers.run_id is 'The run.';
comment on column forgotten_numbers.tool is 'The tool''s name.';
comment on column forgotten_numbers.kind is 'finished_run: of its rows in finished_run_thresholds, _reductions, _progress and _yield. placebo_counts: of the sampled calls in placebo_rates.';
comment on column forgotten_numbers.document_ids is 'The texts that were forgotten together, also those that the run did not hold.';
comment on column forgotten_numbers.numbers is 'Their sums, each below 0 or 0: thresholds, reductions, progress and yield, each a list of rows; or sampled and scored.';
comment on column forgotten_numbers.forgotten_at is 'When.';

-- They take the texts that are forgotten as another argument.
drop function if exists counted_thresholds(run_tools, annotation_runs, annotation_runs) cascade;
drop function if exists counted_histogram(run_tools, annotation_runs, annotation_runs) cascade;
drop function if exists counted_progress(run_tools, annotation_runs, annotation_runs) cascade;
drop function if exists counted_yield(run_tools, annotation_runs, annotation_runs) cascade;
drop function if exists counted_outcomes(run_tools, annotation_runs, annotation_runs) cascade;
drop function if exists counted_by_document(
    run_tools, annotation_runs, annotation_runs, double precision, double precision[], boolean) cascade;
drop function if exists counted_reductions(run_tools, annotation_runs, annotation_runs, double precision, boolean) cascade;
drop function if exists counted_documents(run_tools, annotation_runs, annotation_runs) cascade;
