-- What views asked for again and again is stored: the means of each call's placebos, and why a release takes or leaves each kept call.

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

do $$
declare
    recipe text;
    partition text;
begin
    -- Also of partitions that are detached at this moment: their rows may be attached again.
    for recipe in
        select substr(relation.relname, length('placebo_losses_') + 1)
        from pg_class relation
        where relation.relnamespace = to_regnamespace('partitions') and relation.relkind = 'r'
          and relation.relname ~ '^placebo_losses_[0-9a-f]{16}$'
        order by relation.relname
    loop
        partition := 'call_information_' || recipe;
        execute format(
            'create table partitions.%I (like call_information including all) with (autovacuum_freeze_min_age = 0)', partition);
        execute format('alter table partitions.%I alter column call_id set (n_distinct = 4)', partition);
        execute format('alter table call_information attach partition partitions.%I for values in (%L)', partition, recipe);
        -- In the order of the draw, as avg() read them before: a sum in another order has other last digits.
        execute format(
            'insert into partitions.%I (placebo_recipe_id, document_id, call_id, placebo_reduction, information, placebos)
             select placebo_recipe_id, document_id, call_id, avg(reduction order by number), avg(information order by number), count(*)
             from partitions.%I
             where information is not null
             group by placebo_recipe_id, document_id, call_id
             order by document_id, call_id', partition, 'placebo_losses_' || recipe);
        execute format('analyze partitions.%I', partition);
    end loop;
end
$$;

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

do $$
declare
    made record;
begin
    insert into release_choices (release_id, document_id, call_id) select release_id, document_id, call_id from release_calls;
    for made in
        select run_id, release_id
        from run_releases
        where to_regprocedure('outcomes_of(text)') is not null  -- a database that is made has no functions yet
        order by run_id
    loop
        insert into release_choices (release_id, document_id, call_id, left_out)
        select made.release_id, document_uuid, call_uuid, release_outcome
        from outcomes_of(made.run_id)
        where release_outcome in ('result_does_not_follow', 'better_call_at_position', 'above_max_examples', 'holds_evaluation_data')
        on conflict do nothing;
    end loop;
    analyze release_choices;
    -- The next write of the history adds the choices of the releases of these runs.
    update history_runs set numbers_stored_at = '-infinity' where run_id in (select run_id from run_releases);
end
$$;

-- What is replaced under another name, or with other arguments. The views on them are made anew after the migrations.
drop function if exists better_kept_calls, mean_information, carries_information, run_keeps, call_outcome, planned_run, planned_recipes,
    is_planned_for, call_in_run cascade;
