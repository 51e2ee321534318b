create view run_documents as
select r.run_id, member.document_id, member.variant_id, member.ordinal
from annotation_runs r
cross join lateral (
    -- Postgres plans a subquery with a `with` separately, for one corpus. In a direct join with
    -- annotation_runs, which is too small to have statistics, it would expect a few documents, and join
    -- everything that reads this view row by row.
    with corpus as (
        select document_id, coalesce(variant_id, document_id) as variant_id, ordinal
        from corpus_documents held
        where corpus_id = r.corpus_id and is_member(held, r.corpus_version)
    )
    select document_id, variant_id, ordinal from corpus where ordinal < coalesce(r.ordinal_limit, 2147483647)
) member;
comment on view run_documents is
    'The documents of each run: those of its corpus at the run''s version, up to its document limit.';
comment on column run_documents.variant_id is
    'The row of documents with the url and date that count at this version: the document itself, or a '
    'variant with the same text.';
call inherit_comments('run_documents', 'run_tools', 'corpus_documents');
