-- Audit: the next documents. Their ids are hashes of their texts (those of variants of url and date, too), and a corpus holds each of them.
with page as materialized (
    select document_id, text, url, document_date, variant_of, created_at, record_hash
    from documents document
    where document_id > cast(:after as uuid)
      and (cast(:corpus_ids as text[]) is null
           or exists (select from corpus_documents member
                      where member.document_id = document.document_id and member.corpus_id = any(cast(:corpus_ids as text[])))
           or exists (select from corpus_documents member
                      where member.variant_id = document.document_id and member.corpus_id = any(cast(:corpus_ids as text[]))))
    order by document_id
    limit :page_size
),
named as materialized (
    select page.document_id, page.created_at, page.variant_of, page.record_hash <> variant_id_of(document_id, url, document_date) as differs,
           content_uuid(hashed_part('document') || hashed_part(text)) as by_text,
           variant_id_of(variant_of, url, document_date) as by_record
    from page
),
found as (
    select 'changed' as kind, 'documents' as relation, cast(document_id as text) as place,
           format('expected the content that the id is the hash of, found one with the hash %s', coalesce(by_record, by_text)) as what,
           'Restore the row from a backup: it is not computed again.' as remedy, cast(null as jsonb) as repair
    from named
    where by_text <> coalesce(variant_of, document_id) or (variant_of is not null and by_record <> document_id)
    union all
    select 'changed', 'documents', cast(document_id as text), 'expected the url and date that the row was written with, found others',
           'Restore the row from a backup: it is not computed again.', null
    from named
    where differs
    union all
    select 'orphaned', 'documents', cast(document_id as text), 'expected a corpus that holds the text, found none',
           'An ingestion was interrupted. Ingest its corpus again, or delete the row (--repair).',
           jsonb_build_object('action', 'delete_document', 'document_id', document_id)
    from named
    where created_at < now() - make_interval(secs => :orphans_after_seconds)
      and not exists (select from corpus_documents member where member.document_id = named.document_id)
      and not exists (select from corpus_documents member where member.variant_id = named.document_id)
      and not exists (select from corpus_spare_records spare where spare.document_id = named.document_id)
      and not exists (select from documents variant where variant.variant_of = named.document_id)
)
select case when (select count(*) from page) = :page_size
            then (select cast(document_id as text) from page order by document_id desc limit 1) end as position,
       (select count(*) from page) as items,
       (select count(*) from page where variant_of is null and record_hash is null) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
