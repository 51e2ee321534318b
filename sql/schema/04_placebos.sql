-- Results of other calls in a call's place, and their losses.

create table placebo_pools (
    placebo_recipe_id text primary key references recipes,
    scoring_recipe_id text not null,
    corpus_id         text not null references corpora,
    placebos          integer not null check (placebos >= 0),
    placebo_sample    integer not null check (placebo_sample >= 0),
    documents         bigint not null check (documents >= 0),
    calls             bigint not null check (calls >= 0),
    sample_share      double precision not null check (sample_share >= 0 and sample_share <= 1),
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
    placebo_recipe_id text references placebo_pools on delete cascade,
    source            integer check (source >= 0),
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
    reduction           double precision generated always as (
        case when reason is null
             then reduction_bound end
    ) stored,
    information         double precision check (abs(information) < 'Infinity'),
    placebo_information double precision check (abs(placebo_information) < 'Infinity'),
    constraint the_first_placebo_is_the_sampled_one check (number = 1 or not is_sampled),
    constraint a_scored_placebo_has_a_source_and_losses check (reason is not null or num_nulls(source, loss_with_result, reduction_bound) = 0)
) partition by list (placebo_recipe_id);
alter table placebo_losses alter column call_id set (n_distinct = 4, n_distinct_inherited = 4);
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

create table call_information (
    placebo_recipe_id text,
    document_id       uuid,
    call_id           uuid,
    placebo_reduction double precision,
    information       double precision not null,
    placebos          bigint not null check (placebos >= 1),
    primary key (document_id, call_id, placebo_recipe_id)
) partition by list (placebo_recipe_id);
alter table call_information alter column call_id set (n_distinct = 4, n_distinct_inherited = 4);
comment on table call_information is 'What a call''s result says beyond those of other calls: the means over its placebos. One row for each call with such a placebo, in one partition for each placebo recipe. Writer: stages/placebo.py, with placebo_losses.';
comment on column call_information.placebo_recipe_id is 'The recipe of the placebos.';
comment on column call_information.document_id is 'The document, as in call_losses.';
comment on column call_information.call_id is 'The call.';
comment on column call_information.placebo_reduction is 'The mean placebo reduction, nats: what results of other calls save in its place (docs/placebo.md). Null if no placebo''s is known.';
comment on column call_information.information is 'The mean over its placebos of L(e(c, r'')) - L(e(c, r)), nats: what this result saves beyond any other of its kind.';
comment on column call_information.placebos is 'Number of placebos that the two means are of.';
