-- Which documents: of a shard, of a corpus at a version, that differ between two versions.

create or replace function about_tokens(characters bigint)
    returns bigint
    language sql immutable strict parallel safe
    return (characters + 3) / 4;
comment on function about_tokens is
    'About how many tokens so many characters are: four of English prose are one, as records.py has it. No '
    'tokenizer is asked.';

create or replace function document_shard(document_id uuid, shard_count integer) returns integer
    language sql immutable strict parallel safe
    return (('x' || substr(document_id::text, 1, 8))::bit(32)::bigint % shard_count)::integer;
comment on function document_shard is
    'The shard a document belongs to, 0 to shard_count - 1: the first 32 bits of its id modulo the number '
    'of shards.';

-- Postgres inlines it: a query that calls it is planned as if the comparisons stood there.
create or replace function is_member(member corpus_documents, at_version integer)
    returns boolean
    language sql immutable parallel safe
    return member.first_version <= at_version
        and (member.left_version is null or member.left_version > at_version);
comment on function is_member is 'Whether a row of corpus_documents belongs to this version of its corpus.';

create or replace function share_of_sketches(numbers integer[], others integer[])
    returns double precision
    language sql immutable strict parallel safe
    return (select count(*) filter (where number = other)
        from unnest(numbers, others) as pair (number, other))::double precision
           / cardinality(numbers);
comment on function share_of_sketches is
    'What two texts share, 0 to 1, as their sketches estimate it: the part of the numbers that is equal.';

create or replace function members_beyond(
    corpus text, at_version integer, below_ordinal integer, base_version integer, base_ordinal integer,
        read_record boolean,
    last_document uuid default null)
    returns table (document_id uuid, variant_id uuid, ordinal integer)
    language sql stable parallel safe
as $$
    select member.document_id,
           case when read_record then coalesce(member.variant_id, member.document_id)
               else member.document_id end,
           member.ordinal
    from corpus_documents member
    where member.corpus_id = corpus
      and is_member(member, at_version)
      and member.ordinal < below_ordinal
      -- Members of both versions are the same rows: a row with first_version <= base_version <= at_version
      -- that at_version still holds was there at base_version, with the same variant and ordinal. So those
      -- below base_ordinal are finished, if the base is.
      and (member.first_version > base_version or member.ordinal >= base_ordinal)
      and (last_document is null or member.document_id <= last_document)
$$;
comment on function members_beyond is
    'The members of a corpus at a version, below an ordinal, that are not among its members at an earlier '
    'version below another ordinal (a row of finished_work; 0 and 0: all members), and whose text has an id '
    'up to last_document (null: any). variant_id is the id under which the rows are of a tool that reads '
    'url and date, or does not.';

-- Postgres inlines both, and knows the numbers in a constant: a query is planned for just these documents.
create or replace function members_to_do(asked jsonb)
    returns table (document_id uuid, variant_id uuid, ordinal integer)
    language sql stable parallel safe
as $$
    select *
    from members_beyond(
        asked ->> 'corpus_id', (asked ->> 'at_version')::integer, (asked ->> 'below_ordinal')::integer,
        (asked ->> 'base_version')::integer, (asked ->> 'base_ordinal')::integer,
            (asked ->> 'reads_record')::boolean,
        (asked ->> 'last_document_id')::uuid)
$$;
comment on function members_to_do is
    'members_beyond of the documents that a tool of a run has to look at, as runs/run_tools.py names them.';

create or replace function member_stages(
    asked jsonb, of_filter_recipe_id text, of_scoring_recipe_id text, of_placebo_recipe_id text)
    returns table (document_id uuid, is_filtered boolean, is_kept boolean, is_scored boolean,
        has_placebos boolean)
    language sql stable parallel safe
as $$
    select member.document_id,
           exists (
               select from stage_ledger done
               where done.recipe_id = of_filter_recipe_id and done.document_id = member.variant_id
                   and done.stage = 'filter'
           ),
           exists (
               select from filter_decisions decision
               where decision.filter_recipe_id = of_filter_recipe_id
                   and decision.document_id = member.variant_id and decision.kept
           ),
           exists (
               select from stage_ledger done
               where done.recipe_id = of_scoring_recipe_id and done.document_id = member.variant_id
                   and done.stage = 'score'
           ),
           of_placebo_recipe_id is null or exists (
               select from stage_ledger done
               where done.recipe_id = of_placebo_recipe_id and done.document_id = member.variant_id
                   and done.stage = 'placebo'
           )
    from members_to_do(asked) member
$$;
comment on function member_stages is
    'Of each of the members_to_do: whether the filter has judged it, whether it kept a paragraph, and '
    'whether its calls are scored and have their placebos (true without a recipe of placebos).';

create or replace function differing_members(
    corpus text, at_version integer, below_ordinal integer, base_version integer, base_ordinal integer)
    returns table (document_id uuid, variant_id uuid, record_id text, has_joined boolean)
    language sql stable parallel safe
as $$
    select document_id, variant_id, record_id, is_in
    from (
        select member.document_id, coalesce(member.variant_id, member.document_id) as variant_id,
            member.record_id,
               is_member(member, at_version) and member.ordinal < below_ordinal as is_in,
               is_member(member, base_version) and member.ordinal < base_ordinal as was_in
        from corpus_documents member
        where member.corpus_id = corpus
          -- Only such rows can differ, and each condition has an index.
          and (member.first_version > base_version and member.first_version <= at_version
               or member.left_version > base_version and member.left_version <= at_version
               or member.ordinal >= least(below_ordinal, base_ordinal)
                   and member.ordinal < greatest(below_ordinal, base_ordinal))
    ) compared
    where is_in <> was_in
$$;
comment on function differing_members is
    'The members that only one of two versions of a corpus holds below its ordinal (at_version is the later '
    'one): has_joined is true for those of at_version, false for those of base_version, which have left. A '
    'corrected record is in both. 0 and 0 for the base: all members have joined.';
