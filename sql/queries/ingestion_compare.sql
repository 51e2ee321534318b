-- What the files read now change in a corpus: temporary tables up to `outcomes`, one row for each document that may be affected.
-- Only what differs is looked at, and what has a record id or a text in common with it, in whatever file that is.
set local work_mem = '256MB';
set local jit = off;
set local random_page_cost = 1.1;  -- few rows of large tables, whose upper index pages are in memory
analyze read_files;
analyze read_records;
analyze read_gone;

-- 1. Records of these files that are not the same, in the same line, in the newest version and now. Of a file whose lines were compared
-- when it was read, only those of the lines that differ.
create temporary table differences on commit drop as
with places as (
    select f.file, c.line, c.document_id, c.variant_id, c.record_id, c.title, c.line_hash
    from read_files f
    join corpus_documents c on c.corpus_id = :corpus_id and c.file_uri = f.file_uri and c.left_version is null
    where not f.compared
    union all
    select f.file, c.line, c.document_id, c.variant_id, c.record_id, c.title, c.line_hash
    from read_gone g
    join read_files f using (file)
    join corpus_documents c
        on c.corpus_id = :corpus_id and c.file_uri = f.file_uri and c.line = g.line and c.left_version is null
),
held as (
    select p.file, p.line, p.document_id, p.record_id, d.url, d.document_date, p.title, p.line_hash
    from places p
    join documents d on d.document_id = coalesce(p.variant_id, p.document_id)
    union all
    select f.file, s.line, s.document_id, s.record_id, s.url, s.document_date, s.title, s.line_hash
    from read_files f
    join corpus_spare_records s on s.corpus_id = :corpus_id and s.file_uri = f.file_uri
    where not f.compared or exists (select from read_gone g where g.file = f.file and g.line = s.line)
)
select f.file_uri, line, held.document_id as old_document_id, held.record_id as old_record_id,
       r.document_id, r.record_id, r.url, r.document_date, r.title, r.line_hash
from held
full join read_records r using (file, line)
join read_files f using (file)
where (held.document_id, held.record_id, held.url, held.document_date, held.title, held.line_hash)
      is distinct from (r.document_id, r.record_id, r.url, r.document_date, r.title, r.line_hash);
analyze differences;

-- 2. Record ids whose records must be compared anew.
create temporary table affected_ids on commit drop as
select old_record_id as record_id from differences where old_record_id is not null
union
select record_id from differences where record_id is not null;
analyze affected_ids;

-- 3. Texts whose records must be compared anew: those that differ, and those of all records with an affected id.
create temporary table affected_texts on commit drop as
select old_document_id as document_id from differences where old_document_id is not null
union
select document_id from differences where document_id is not null
union
select c.document_id
from affected_ids a
join corpus_documents c on c.corpus_id = :corpus_id and c.record_id = a.record_id and c.left_version is null
union
select s.document_id
from affected_ids a
join corpus_spare_records s on s.corpus_id = :corpus_id and s.record_id = a.record_id;
analyze affected_texts;

-- 4. All records with these texts as they are now; `was` is what they were in the newest version.
create temporary table contested on commit drop as
select d.file_uri, d.line, d.document_id, d.record_id, d.url, d.document_date, d.title, d.line_hash,
       cast(null as text) as was
from differences d
where d.document_id is not null
union all
select held.*
from (
    select c.file_uri, c.line, c.document_id, c.record_id, d.url, d.document_date, c.title, c.line_hash, 'document'
    from affected_texts a
    join corpus_documents c on c.corpus_id = :corpus_id and c.document_id = a.document_id and c.left_version is null
    join documents d on d.document_id = coalesce(c.variant_id, c.document_id)
    union all
    select s.file_uri, s.line, s.document_id, s.record_id, s.url, s.document_date, s.title, s.line_hash, s.why
    from affected_texts a
    join corpus_spare_records s on s.corpus_id = :corpus_id and s.document_id = a.document_id
) held
where not exists (
    select from differences d
    where d.file_uri = held.file_uri and d.line = held.line and d.old_document_id is not null
);
analyze contested;

-- 5. Which of them count: of one id the last one, then of one text the first one.
create temporary table settled on commit drop as
with replaced as (
    select distinct on (c.record_id) c.record_id, c.file_uri, c.line
    from contested c
    join affected_ids a using (record_id)
    order by c.record_id, c.file_uri collate "C" desc, c.line desc
),
judged as (
    select c.*,
           case when newest.record_id is null then c.was is not distinct from 'same_id_later'
                else (c.file_uri, c.line) <> (newest.file_uri, newest.line)
           end as is_replaced
    from contested c
    left join replaced newest using (record_id)
)
select file_uri, line, document_id, record_id, url, document_date, title, line_hash, was,
       case when is_replaced then 'same_id_later'
            when row_number() over (partition by document_id, is_replaced order by file_uri collate "C", line) = 1 then 'document'
            else 'duplicate'
       end as becomes
from judged;
analyze settled;

-- 6. What that means for each text.
create temporary table outcomes on commit drop as
with held as (
    select c.document_id, c.first_version, c.ordinal, c.file_uri, c.line, c.record_id, c.variant_id, c.title, c.line_hash,
           case when f.read_as = 0 then coalesce(c.title, d.title) else c.title end as known_title
    from affected_texts a
    join corpus_documents c on c.corpus_id = :corpus_id and c.document_id = a.document_id and c.left_version is null
    join documents d on d.document_id = c.document_id
    left join corpus_files f on f.corpus_id = :corpus_id and f.file_uri = c.file_uri  -- read_as 0: before titles were stored here
),
found as (
    select s.document_id, s.file_uri, s.line, s.record_id, s.url, s.document_date, s.title, s.line_hash,
           case when (s.url, s.document_date) is distinct from (d.url, d.document_date)
                then variant_id_of(s.document_id, s.url, s.document_date)
           end as variant_id
    from settled s
    join documents d using (document_id)
    where s.becomes = 'document'
)
select document_id, held.first_version, held.ordinal, found.file_uri, found.line, found.record_id, found.variant_id,
       found.url, found.document_date, found.title, found.line_hash,
       case when found.file_uri is null then 'removed'
            when held.file_uri is null then 'added'
            when found.variant_id is distinct from held.variant_id or found.title is distinct from held.known_title then 'corrected'
            when (found.file_uri, found.line, found.record_id, found.title, found.line_hash)
                 is distinct from (held.file_uri, held.line, held.record_id, held.title, held.line_hash) then 'moved'
            else 'same'
       end as change
from held
full join found using (document_id);
analyze outcomes
