-- Bring the tables from the newest version of a corpus to the files read now, as ingestion_compare found it.

-- 1. Texts whose record has another url or date than their row of documents.
insert into documents (document_id, text, url, document_date, title, escaped_characters, variant_of)
select o.variant_id, d.text, o.url, o.document_date, o.title, d.escaped_characters, d.document_id
from outcomes o
join documents d using (document_id)
where o.variant_id is not null and o.change in ('added', 'corrected')
order by o.variant_id
on conflict do nothing;

-- 2. Membership: end intervals, start intervals, and say where the record is that counts.
update corpus_documents c
set left_version = :version
from outcomes o
where o.change in ('removed', 'corrected')
  and c.corpus_id = :corpus_id and c.document_id = o.document_id and c.first_version = o.first_version;

update corpus_documents c
set file_uri = o.file_uri, line = o.line, record_id = o.record_id, title = o.title, line_hash = o.line_hash
from outcomes o
where o.change = 'moved'
  and c.corpus_id = :corpus_id and c.document_id = o.document_id and c.first_version = o.first_version;

insert into corpus_documents
    (corpus_id, document_id, ordinal, file_uri, line, first_version, variant_id, record_id, title, line_hash)
select :corpus_id, document_id, ordinal, file_uri, line, :version, variant_id, record_id, title, line_hash
from outcomes
where change = 'corrected'
union all
select :corpus_id, o.document_id,
       last.ordinal + row_number() over (order by o.file_uri collate "C", o.line),
       o.file_uri, o.line, :version, o.variant_id, o.record_id, o.title, o.line_hash
from outcomes o
cross join (select coalesce(max(ordinal), -1) as ordinal from corpus_documents where corpus_id = :corpus_id) last
where o.change = 'added';

-- 3. Records that do not count, and records that are refused.
delete from corpus_spare_records s
using differences d
where s.corpus_id = :corpus_id and s.file_uri = d.file_uri and s.line = d.line and d.old_document_id is not null;

delete from corpus_spare_records s
using affected_texts a
where s.corpus_id = :corpus_id and s.document_id = a.document_id;

delete from rejected_documents r
using read_files f
where r.corpus_id = :corpus_id and r.file_uri = f.file_uri;

delete from rejected_documents r
using settled s
where r.corpus_id = :corpus_id and r.file_uri = s.file_uri and r.line = s.line and s.was = 'same_id_later';

insert into corpus_spare_records
    (corpus_id, file_uri, line, document_id, record_id, url, document_date, title, line_hash, why)
select :corpus_id, file_uri, line, document_id, record_id, url, document_date, title, line_hash, becomes
from settled
where becomes <> 'document';

insert into rejected_documents (corpus_id, file_uri, line, reason, detail)
select :corpus_id, f.file_uri, r.line, r.reason, r.detail
from read_rejections r
join read_files f using (file)
union all
select :corpus_id, replaced.file_uri, replaced.line, 'same_id_later', 'a later record has the same id'
from (
    select s.file_uri, s.line
    from read_files f
    join corpus_spare_records s on s.corpus_id = :corpus_id and s.file_uri = f.file_uri and s.why = 'same_id_later'
    union
    select file_uri, line from settled where becomes = 'same_id_later'
) replaced;

-- 4. The files.
delete from corpus_files c
using read_files f
where c.corpus_id = :corpus_id and c.file_uri = f.file_uri and f.change = 'removed';

insert into corpus_files
    (corpus_id, file_uri, content_sha256, size_bytes, stamp, records, usable, refused, read_as, ingested_at)
select :corpus_id, file_uri, content_sha256, size_bytes, stamp, records, usable, refused, :read_as, now()
from read_files
where change <> 'removed'
on conflict (corpus_id, file_uri) do update
set content_sha256 = excluded.content_sha256, size_bytes = excluded.size_bytes, stamp = excluded.stamp, records = excluded.records,
    accepted = null, duplicates = null, rejected = null,
    usable = excluded.usable, refused = excluded.refused, read_as = excluded.read_as, ingested_at = excluded.ingested_at;

update corpus_files c
set accepted = c.usable - spare.duplicates - spare.replaced,
    duplicates = spare.duplicates,
    rejected = c.records - c.usable + spare.replaced
from (select file_uri from read_files union select file_uri from settled) touched
cross join lateral (
    select count(*) filter (where why = 'duplicate') as duplicates, count(*) filter (where why = 'same_id_later') as replaced
    from corpus_spare_records s
    where s.corpus_id = :corpus_id and s.file_uri = touched.file_uri
) spare
where c.corpus_id = :corpus_id and c.file_uri = touched.file_uri
