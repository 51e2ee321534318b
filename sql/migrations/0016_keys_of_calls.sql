-- Rows of calls are found by document and call. The primary keys began with the recipe, which is the same in a whole partition, followed by a
-- random call id: 94 bytes of index a row, and a random page for each row. A unique index on (document_id, call_id) in each partition takes 62,
-- and the calls of a document share a page. It serves document_id alone, too. A unique index of the parent would have to hold the recipe.
-- No table is written again. Each index takes about 1 s for 1,000,000 rows, while the table can be read.

do $$
declare
    partition regclass;
begin
    for partition in
        select inhrelid::regclass
        from pg_inherits
        where inhparent in ('candidate_calls'::regclass, 'call_losses'::regclass)
    loop
        execute format('create unique index %I on %s (document_id, call_id)',
                       (select relname from pg_class where oid = partition) || '_key', partition);
    end loop;
end
$$;

alter table candidate_calls drop constraint candidate_calls_pkey;
alter table call_losses drop constraint call_losses_pkey;
drop index candidate_calls_document_id_idx;
drop index call_losses_document_id_idx;

comment on table candidate_calls is 'Calls that the language model proposed, one row for equal calls at one position. One partition for each sampling recipe, in which document_id and call_id are the key. Writer: stages/sampling.py.';
comment on table call_losses is 'Three losses for each candidate call, kept or not; or the reason why it was not scored. One partition for each scoring recipe, in which document_id and call_id are the key. Writer: stages/scoring.py.';
