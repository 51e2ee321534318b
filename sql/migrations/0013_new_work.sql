-- A night reads what is new: the documents that joined the corpus since the newest version that a recipe has finished, and of the calls
-- those that are kept. Writers: stages/checking.py (finished_work, checked_yields), runs/micro_batches.py (micro_batches).

-- Building the index locks the writes of call_losses: 2 s for 1,000,000 scored calls.
create index call_losses_kept on call_losses (scoring_recipe_id, loss_reduction) where reason is null;
comment on index call_losses_kept is 'The scored calls of a recipe by loss reduction: the best calls, and those above a threshold.';

create function members_beyond(
    corpus text, at_version integer, below_ordinal integer, base_version integer, base_ordinal integer, read_record boolean)
    returns table (document_id uuid, variant_id uuid, ordinal integer)
    language sql stable parallel safe
as $$
    select member.document_id,
           case when read_record then coalesce(member.variant_id, member.document_id) else member.document_id end,
           member.ordinal
    from corpus_documents member
    where member.corpus_id = corpus
      and member.first_version <= at_version
      and (member.left_version is null or member.left_version > at_version)
      and member.ordinal < below_ordinal
      -- Members of both versions are the same rows: a row with first_version <= base_version <= at_version that at_version still holds
      -- was there at base_version, with the same variant and ordinal. So those below base_ordinal are finished, if the base is.
      and (member.first_version > base_version or member.ordinal >= base_ordinal)
$$;
comment on function members_beyond(text, integer, integer, integer, integer, boolean) is 'The members of a corpus at a version, below an ordinal, that are not among its members at an earlier version below another ordinal (a row of finished_work; 0 and 0: all members). variant_id is the id under which the rows are of a tool that reads url and date, or does not.';

create table checked_yields (
    run_id       text not null,
    tool         text not null,
    judged_calls bigint not null check (judged_calls >= kept_calls),
    kept_calls   bigint not null check (kept_calls >= kept_texts),
    kept_texts   bigint not null check (kept_texts >= 0),
    primary key (run_id, tool),
    foreign key (run_id, tool) references run_tools
);
comment on table checked_yields is 'What each run''s passed check of a tool counted. The check of a later version of the corpus adds what joined and subtracts what left. Writer: stages/checking.py.';
comment on column checked_yields.run_id is 'The run.';
comment on column checked_yields.tool is 'The tool''s name.';
comment on column checked_yields.judged_calls is 'Calls whose losses were computed or provably are below prune_below (reason null or pruned_below).';
comment on column checked_yields.kept_calls is 'Of these those kept at the run''s keep_threshold.';
comment on column checked_yields.kept_texts is 'Documents with at least one kept call.';
