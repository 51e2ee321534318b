-- How the documents of a run differ from those of an earlier one over the same corpus; changed: records with an id that have another text.
with differing as materialized (
    select document_id, record_id, has_joined
    from differing_members(
        :corpus_id, :version, cast(:ordinal_limit as integer), :before_version, cast(:before_ordinal_limit as integer))
),
by_document as (
    select bool_or(has_joined) as is_member, bool_or(not has_joined) as was_member
    from differing
    group by document_id
)
select (select count(*) from by_document where is_member and not was_member) as added,
       (select count(*) from by_document where was_member and not is_member) as removed,
       (select count(*) from by_document where is_member and was_member) as corrected,
       (select count(distinct record_id)
        from differing new
        join differing old using (record_id)
        where new.has_joined and not old.has_joined and new.document_id <> old.document_id) as changed
