-- By which members two versions of a corpus differ: one function for what is counted of a run, checked and summed up.

create function differing_members(
    corpus text, at_version integer, below_ordinal integer, base_version integer, base_ordinal integer)
    returns table (document_id uuid, variant_id uuid, record_id text, has_joined boolean)
    language sql stable parallel safe
as $$
    select document_id, variant_id, record_id, is_member
    from (
        select member.document_id, coalesce(member.variant_id, member.document_id) as variant_id, member.record_id,
               member.first_version <= at_version and (member.left_version is null or member.left_version > at_version)
                   and member.ordinal < below_ordinal as is_member,
               member.first_version <= base_version and (member.left_version is null or member.left_version > base_version)
                   and member.ordinal < base_ordinal as was_member
        from corpus_documents member
        where member.corpus_id = corpus
          -- Only such rows can differ, and each condition has an index.
          and (member.first_version > base_version and member.first_version <= at_version
               or member.left_version > base_version and member.left_version <= at_version
               or member.ordinal >= least(below_ordinal, base_ordinal) and member.ordinal < greatest(below_ordinal, base_ordinal))
    ) compared
    where is_member <> was_member
$$;
comment on function differing_members(text, integer, integer, integer, integer) is 'The members that only one of two versions of a corpus holds below its ordinal (at_version is the later one): has_joined is true for those of at_version, false for those of base_version, which have left. A corrected record is in both. 0 and 0 for the base: all members have joined.';
