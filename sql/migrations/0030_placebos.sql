-- Placebos: results of other calls of the same tool, scored in a call's place, so that it is known which calls carry information, and how
-- many a threshold keeps by chance. Writers: stages/placebo.py (pools, placebo_losses), runs/placebo_rates.py (rates).

alter table run_tools
    add column placebo_recipe_id text,
    add column tau_information double precision check (tau_information >= 0 and tau_information < 'Infinity');
comment on column run_tools.placebo_recipe_id is 'Key of placebo_losses. Null where the run asks for no placebos, and before its pool is drawn.';
comment on column run_tools.tau_information is 'A kept call carries at least so much information, nats; null: the paper''s keep rule alone.';

-- Runs from before this migration asked for no placebos.
update annotation_runs
set parameters = parameters || '{"placebos": 0, "placebo_sample": 0, "keep_rule": "paper", "tau_information": 0.2, "max_false_discovery_rate": null}'
where parameters <> '{}' and not parameters ? 'placebos';

create table placebo_pools (
    placebo_recipe_id text primary key references recipes,
    scoring_recipe_id text not null,
    corpus_id         text not null references corpora,
    placebos          integer not null check (placebos >= 0),
    placebo_sample    integer not null check (placebo_sample >= 0),
    documents         bigint not null check (documents >= 0),
    calls             bigint not null check (calls >= 0),
    sample_share      double precision not null check (sample_share between 0 and 1),
    drawn_at          timestamptz not null default now()
);
create index on placebo_pools (scoring_recipe_id, corpus_id);
comment on table placebo_pools is 'The results that placebos are drawn from: one row for each pool. Later runs of the same scoring recipe over the same corpus draw from the same pool, until the corpus has more than twice the documents. Writer: stages/placebo.py.';
comment on column placebo_pools.placebo_recipe_id is 'The recipe: the scoring''s recipe, the numbers below, and the hash of the pool.';
comment on column placebo_pools.scoring_recipe_id is 'The recipe of the scoring.';
comment on column placebo_pools.corpus_id is 'The corpus.';
comment on column placebo_pools.placebos is 'K: placebos for each call whose loss reduction reaches prune_below.';
comment on column placebo_pools.placebo_sample is 'About how many calls the false-discovery rate was to be estimated from when the pool was drawn.';
comment on column placebo_pools.documents is 'Documents of the run that drew the pool.';
comment on column placebo_pools.calls is 'Calls with a result that the run had then.';
comment on column placebo_pools.sample_share is 'Share of the calls with a result that belongs to the sample for the rate: those whose hash is below it.';
comment on column placebo_pools.drawn_at is 'When it was drawn.';

create table placebo_pool_results (
    placebo_recipe_id text not null references placebo_pools on delete cascade,
    source            integer not null check (source >= 0),
    call_id           uuid not null,
    document_id       uuid not null,
    result            text not null,
    primary key (placebo_recipe_id, source)
);
create index on placebo_pool_results (document_id);
comment on table placebo_pool_results is 'The calls of a pool: those of the run with the smallest ids that have a result, at most 1,000. A call of a forgotten text is deleted, and never drawn again. Writer: stages/placebo.py.';
comment on column placebo_pool_results.placebo_recipe_id is 'The pool.';
comment on column placebo_pool_results.source is 'Number of the call in the pool, from 0.';
comment on column placebo_pool_results.call_id is 'The call that the result is of.';
comment on column placebo_pool_results.document_id is 'Its document.';
comment on column placebo_pool_results.result is 'Its result, as in call_losses.';

create table placebo_losses (
    placebo_recipe_id   text not null,
    document_id         uuid not null,
    call_id             uuid not null,
    number              integer not null check (number >= 1),
    source              integer check (source >= 0),
    is_sampled          boolean not null,
    reason              text,
    loss_with_result    double precision check (loss_with_result >= 0 and loss_with_result < 'Infinity'),
    reduction_bound     double precision check (abs(reduction_bound) < 'Infinity'),
    reduction           double precision generated always as (case when reason is null then reduction_bound end) stored,
    information         double precision check (abs(information) < 'Infinity'),
    placebo_information double precision check (abs(placebo_information) < 'Infinity'),
    constraint a_scored_placebo_has_a_source_and_losses check (
        reason is not null or num_nulls(source, loss_with_result, reduction_bound) = 0),
    constraint the_first_placebo_is_the_sampled_one check (number = 1 or not is_sampled)
) partition by list (placebo_recipe_id);
comment on table placebo_losses is 'The loss of a call''s place with another call''s result: one row for each call and placebo. One partition for each placebo recipe, in which document_id, call_id and number are the key. Writer: stages/placebo.py.';
comment on column placebo_losses.placebo_recipe_id is 'The recipe of the placebos.';
comment on column placebo_losses.document_id is 'The document, as in call_losses.';
comment on column placebo_losses.call_id is 'The call whose place is scored.';
comment on column placebo_losses.number is 'Number of the placebo in the order of the draw, from 1.';
comment on column placebo_losses.source is 'The call that the result is of: placebo_pool_results.source. Null where there is none.';
comment on column placebo_losses.is_sampled is 'Whether the placebo belongs to the sample that the false-discovery rate is estimated from: the first of each sampled call.';
comment on column placebo_losses.reason is 'Why there is no placebo reduction: pruned_below (the losses that are known prove that it is below prune_below), no_other_result (no call of another document has another result), only_compared (a sampled placebo was compared with it; L- is not known), loss_not_finite; process_killed or out_of_memory where the text was given up. Null for a scored placebo.';
comment on column placebo_losses.loss_with_result is 'L(e(c, r'')): the loss with the call and the placebo as a prefix, nats. Null where it was not computed.';
comment on column placebo_losses.reduction_bound is 'L- - L(e(c, r'')), nats, or with reason pruned_below a number that it does not exceed.';
comment on column placebo_losses.reduction is 'The placebo reduction L- - L(e(c, r'')), nats; null where reason says why.';
comment on column placebo_losses.information is 'L(e(c, r'')) - L(e(c, r)), nats: what the call''s own result saves beyond this placebo. Null where one of the two losses was not computed, and for a placebo beyond the first K.';
comment on column placebo_losses.placebo_information is 'Of a sampled placebo that reaches prune_below: the mean over the call''s next placebos of L(e(c, r'''')) - L(e(c, r'')), nats: the information that the placebo would have as a result. Else null.';

create table placebo_counts (
    run_id    text not null,
    tool      text not null,
    threshold double precision not null,
    placebos  integer not null check (placebos >= 0),
    calls     integer not null check (calls >= 0),
    documents bigint not null check (documents >= 0),
    primary key (run_id, tool, threshold, placebos, calls),
    foreign key (run_id, tool) references run_tools
);
comment on table placebo_counts is 'How many documents of a run have so many sampled placebos and so many calls that the run''s keep rule keeps at a threshold: what the interval of the false-discovery rate is resampled from. Documents with neither are not counted. Writer: runs/placebo_rates.py.';
comment on column placebo_counts.run_id is 'The run.';
comment on column placebo_counts.tool is 'The tool''s name.';
comment on column placebo_counts.threshold is 'tau_f, nats.';
comment on column placebo_counts.placebos is 'Sampled placebos of a document that the rule would keep.';
comment on column placebo_counts.calls is 'Calls of a document that the rule keeps.';
comment on column placebo_counts.documents is 'How many documents have these two numbers.';

create table placebo_rates (
    run_id              text not null,
    tool                text not null,
    threshold           double precision not null,
    placebo_recipe_id   text not null,
    calls               bigint not null check (calls >= 0),
    placebos            bigint not null check (placebos >= 0),
    placebos_scored     bigint not null check (placebos_scored >= placebos),
    calls_sampled       bigint not null check (calls_sampled >= placebos_scored),
    false_discovery_rate double precision check (false_discovery_rate >= 0),
    rate_low            double precision check (rate_low >= 0),
    rate_high           double precision check (rate_high >= rate_low),
    counted_at          timestamptz not null default now(),
    primary key (run_id, tool, threshold),
    foreign key (run_id, tool) references run_tools
);
comment on table placebo_rates is 'The false-discovery rate of a tool in a run at a threshold (docs/placebo.md). Written by the tool''s check and at the end of the run; does not change after that. Writer: runs/placebo_rates.py.';
comment on column placebo_rates.run_id is 'The run.';
comment on column placebo_rates.tool is 'The tool''s name.';
comment on column placebo_rates.threshold is 'tau_f, nats.';
comment on column placebo_rates.placebo_recipe_id is 'The placebos that it was counted from.';
comment on column placebo_rates.calls is 'Calls that the run''s keep rule keeps at the threshold.';
comment on column placebo_rates.placebos is 'Sampled placebos that the same rule would keep.';
comment on column placebo_rates.placebos_scored is 'Sampled calls that have a placebo.';
comment on column placebo_rates.calls_sampled is 'Sampled calls; those without another result to draw included.';
comment on column placebo_rates.false_discovery_rate is 'Placebos expected among all calls with a result, over calls: (placebos / placebos_scored) (calls_sampled / sample_share) / calls. Null where a divisor is 0.';
comment on column placebo_rates.rate_low is 'Lower end of the 95 % interval, by resampling documents.';
comment on column placebo_rates.rate_high is 'Upper end.';
comment on column placebo_rates.counted_at is 'When.';

-- The fifth stage of the ledger. No row is read: every stage that was allowed still is.
alter table stage_ledger drop constraint stage_ledger_stage_check,
    add constraint stage_ledger_stage_check check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')) not valid;
alter table micro_batches drop constraint micro_batches_stage_check,
    add constraint micro_batches_stage_check check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')) not valid;
alter table micro_batch_tries drop constraint micro_batch_tries_stage_check,
    add constraint micro_batch_tries_stage_check check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')) not valid;
alter table failed_documents drop constraint failed_documents_stage_check,
    add constraint failed_documents_stage_check check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')) not valid;
alter table finished_run_work drop constraint finished_run_work_stage_check,
    add constraint finished_run_work_stage_check check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')) not valid;
comment on column stage_ledger.stage is 'filter, sample, execute, score or placebo.';
comment on column micro_batches.stage is 'filter, sample, execute, score or placebo.';
comment on column micro_batch_tries.stage is 'filter, sample, execute, score or placebo.';
comment on column failed_documents.stage is 'filter, sample, execute, score or placebo.';
comment on column finished_run_work.stage is 'filter, sample, execute, score or placebo.';
comment on column finished_work.recipe_id is 'The recipe of a stage: filter, sample, execute, score or placebo.';
comment on column recipes.stage is 'filter, sample, execute, score or placebo.';

create function placebo_row_text(placebo placebo_losses)
    returns text
    language sql stable parallel safe
    return cast(row(
        placebo.call_id, placebo.number, placebo.source, placebo.is_sampled, placebo.reason, placebo.loss_with_result,
        placebo.reduction_bound, placebo.information, placebo.placebo_information) as text);
comment on function placebo_row_text(placebo_losses) is 'A placebo''s losses as stage_ledger.rows_hash hashes them; generated columns follow from these.';
