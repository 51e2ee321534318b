-- A new version of a corpus: its files are compared with the version before, and applied in one transaction.

-- name: begin
-- Where an ingestion collects what it reads, until the version is made. The tables belong to the session and
-- end with it.
create temporary table read_files (
    file           integer primary key,
    file_uri       text collate "C" not null,
    change         text not null,
    content_sha256 text,
    size_bytes     bigint,
    stamp          text,
    records        integer,
    usable         integer,
    refused        jsonb,
    -- records of lines that are the same were left out; read_lines has the other lines
    compared       boolean not null default false
);
create temporary table read_lines (
    file          integer not null,
    line          integer not null,
    -- or refused; or gone: the file has no longer what the newest version has there
    kind          text not null default 'record',
    document_id   uuid,
    record_id     text,
    url           text,
    document_date date,
    title         text,
    line_hash     bigint,
    reason        text,  -- of a refused record
    detail        text
)

-- name: known_files
-- The files of a corpus as they were read last.
select file_uri, content_sha256, size_bytes, stamp, read_as,
    coalesce(usable, accepted + duplicates, 0) as usable
from corpus_files
where corpus_id = :corpus_id

-- name: held_lines
-- The lines of files with usable records of the newest version, in order: for each 4 bytes of its number and
-- 8 of its hash. A row holds those of so many lines, since a value has at most a gigabyte.
select file_uri, line / :piece_lines as piece,
       string_agg(int4send(line) || coalesce(int8send(line_hash), decode('0000000000000000', 'hex')), ''
           order by line) as lines
from (
    select file_uri, line, line_hash
    from corpus_documents
    where corpus_id = :corpus_id and file_uri = any(cast(:file_uris as text[])) and left_version is null
    union all
    select file_uri, line, line_hash
    from corpus_spare_records
    where corpus_id = :corpus_id and file_uri = any(cast(:file_uris as text[]))
) held
group by file_uri, line / :piece_lines
order by file_uri, line / :piece_lines

-- name: forgotten_meanwhile
-- How many files lost a text, and how many records are of a text, that was forgotten since they were read.
select (
           select count(*)
           from corpus_files
           where corpus_id = :corpus_id and read_as = -1
               and file_uri <> all(cast(:incomplete_files as text[]))
       ) as files,
       (select count(*) from read_lines
           where document_id in (select document_id from forgotten_documents)) as records

-- name: texts_there
-- Which of these texts have a row, and which were forgotten: no ingestion takes them again.
select asked.document_id,
       exists (select from documents d where d.document_id = asked.document_id) as has_row,
       exists (select from forgotten_documents f where f.document_id = asked.document_id) as is_forgotten
from unnest(cast(:document_ids as uuid[])) as asked (document_id)

-- name: texts_without_sketch
-- Which of these texts have no sketch yet.
select asked.document_id
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
where not exists (select from text_sketches sketch where sketch.document_id = asked.document_id)

-- name: compare
-- What the files read now change in a corpus: temporary tables up to `outcomes`, one row for each document
-- that may be affected. Only what differs is looked at, and what has a record id or a text in common with it,
-- in any file.
set local work_mem = '256MB';
set local jit = off;
set local random_page_cost = 1.1;  -- few rows of large tables, whose upper index pages are in memory
analyze read_files;
analyze read_lines;

-- 1. Records of these files that are not the same, in the same line, in the newest version and now. Of a file
--    whose lines were compared when it was read, only those of the lines that differ.
create temporary table differences on commit drop as
with places as (
    select f.file, c.line, c.document_id, c.variant_id, c.record_id, c.title, c.line_hash
    from read_files f
    join corpus_documents c on c.corpus_id = :corpus_id and c.file_uri = f.file_uri and c.left_version is null
    where not f.compared
    union all
    select f.file, c.line, c.document_id, c.variant_id, c.record_id, c.title, c.line_hash
    from read_lines gone
    join read_files f using (file)
    join corpus_documents c
        on c.corpus_id = :corpus_id and c.file_uri = f.file_uri and c.line = gone.line
            and c.left_version is null
    where gone.kind = 'gone'
),
held as (
    select p.file, p.line, p.document_id, p.record_id, d.url, d.document_date, p.title, p.line_hash
    from places p
    join documents d on d.document_id = coalesce(p.variant_id, p.document_id)
    union all
    select f.file, s.line, s.document_id, s.record_id, s.url, s.document_date, s.title, s.line_hash
    from read_files f
    join corpus_spare_records s on s.corpus_id = :corpus_id and s.file_uri = f.file_uri
    where not f.compared or exists (select from read_lines gone where gone.kind = 'gone'
        and gone.file = f.file and gone.line = s.line)
)
select f.file_uri, line, held.document_id as old_document_id, held.record_id as old_record_id,
       r.document_id, r.record_id, r.url, r.document_date, r.title, r.line_hash
from held
full join (select * from read_lines where kind = 'record') r using (file, line)
join read_files f using (file)
where (held.document_id, held.record_id, held.url, held.document_date, held.title, held.line_hash)
      is distinct from (r.document_id, r.record_id, r.url, r.document_date, r.title, r.line_hash);
analyze differences;

-- 2. Record ids whose records must be compared anew.
create temporary table affected (record_id text, document_id uuid) on commit drop;
insert into affected (record_id)
select old_record_id from differences where old_record_id is not null
union
select record_id from differences where record_id is not null;
analyze affected;

-- 3. Texts whose records must be compared anew: those that differ, and those of all records with an affected
--    id.
insert into affected (document_id)
select old_document_id from differences where old_document_id is not null
union
select document_id from differences where document_id is not null
union
select c.document_id
from affected a
join corpus_documents c on c.corpus_id = :corpus_id and c.record_id = a.record_id and c.left_version is null
union
select s.document_id
from affected a
join corpus_spare_records s on s.corpus_id = :corpus_id and s.record_id = a.record_id;
-- 4. Where texts that nearly repeat another are left out: texts that have a band of their sketch in common
--    with one of these and a greater id, since whether they count depends on these; and those that resembled
--    a text which was forgotten.
insert into affected (document_id)
with changed as (
    select own.band, cast(min(cast(own.document_id as text)) as uuid) as least_id
    from (select distinct document_id from affected where document_id is not null) text
    join text_bands own using (document_id)
    where cast(:share as double precision) is not null
      and exists (select from corpus_documents where corpus_id = :corpus_id)
    group by own.band
)
select mate.document_id
from (
    select distinct other.document_id
    from changed
    join text_bands other on other.band = changed.band and other.document_id > changed.least_id
) mate
where exists (
          select from corpus_documents c
          where c.corpus_id = :corpus_id and c.document_id = mate.document_id and c.left_version is null)
   or exists (
          select from corpus_spare_records s
          where s.corpus_id = :corpus_id and s.document_id = mate.document_id and s.why = 'near_duplicate')
union
select document_id from corpus_spare_records
where corpus_id = :corpus_id and why = 'near_duplicate' and resembles is null
except
select document_id from affected;
analyze affected;

-- 5. All records with these texts as they are now (`was` is what they were in the newest version), and which
--    of them count: of one id the last one, then of one text the first one.
create temporary table settled on commit drop as
with contested as materialized (
    select d.file_uri, d.line, d.document_id, d.record_id, d.url, d.document_date, d.title, d.line_hash,
           cast(null as text) as was
    from differences d
    where d.document_id is not null
    union all
    select held.*
    from (
        select c.file_uri, c.line, c.document_id, c.record_id, d.url, d.document_date, c.title, c.line_hash,
            'document'
        from affected a
        join corpus_documents c on c.corpus_id = :corpus_id and c.document_id = a.document_id
            and c.left_version is null
        join documents d on d.document_id = coalesce(c.variant_id, c.document_id)
        union all
        select s.file_uri, s.line, s.document_id, s.record_id, s.url, s.document_date, s.title, s.line_hash,
            s.why
        from affected a
        join corpus_spare_records s on s.corpus_id = :corpus_id and s.document_id = a.document_id
    ) held
    where not exists (
        select from differences d
        where d.file_uri = held.file_uri and d.line = held.line and d.old_document_id is not null
    )
),
replaced as (
    select distinct on (c.record_id) c.record_id, c.file_uri, c.line
    from contested c
    join affected a using (record_id)
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
       cast(null as uuid) as resembles,
       case when is_replaced then 'same_id_later'
            when row_number() over (partition by document_id, is_replaced
                order by file_uri collate "C", line) = 1 then 'document'
            else 'duplicate'
       end as becomes
from judged;
create index on settled (document_id) where becomes = 'document';
create index on affected (document_id);
analyze settled;

-- 6. Of these, the texts that nearly repeat a text of the corpus with a lesser id, left out or not: one of
--    the hundred with the least ids that have a band in common. So which are left out depends on the texts of
--    the corpus alone, and a look at one text is bounded.
create temporary table repetitions on commit drop as
select text.document_id, original.document_id as resembles
from settled text
join text_sketches sketch using (document_id)
cross join lateral (
    select mate.document_id
    from (
        select distinct near.document_id
        from text_bands own
        cross join lateral (
            select other.document_id
            from text_bands other
            where other.band = own.band
              and other.document_id < text.document_id
              and case
                      when exists (select from affected a where a.document_id = other.document_id)
                          then exists (select from settled s where s.document_id = other.document_id
                              and s.becomes = 'document')
                      else exists (
                              select from corpus_documents c
                              where c.corpus_id = :corpus_id and c.document_id = other.document_id
                                  and c.left_version is null)
                           or exists (
                              select from corpus_spare_records s
                              where s.corpus_id = :corpus_id and s.document_id = other.document_id
                                  and s.why = 'near_duplicate')
                  end
            order by other.document_id
            limit 100
        ) near
        where own.document_id = text.document_id
    ) mate
    join text_sketches other using (document_id)
    where share_of_sketches(sketch.numbers, other.numbers) >= cast(:share as double precision)
    order by mate.document_id
    limit 1
) original
where text.becomes = 'document' and cast(:share as double precision) is not null;
analyze repetitions;

update settled text
set becomes = 'near_duplicate', resembles = repetition.resembles
from repetitions repetition
where text.document_id = repetition.document_id and text.becomes = 'document';

-- 7. What that means for each text.
create temporary table outcomes on commit drop as
with held as (
    select c.document_id, c.first_version, c.ordinal, c.file_uri, c.line, c.record_id, c.variant_id, c.title,
        c.line_hash,
           case when f.read_as = 0 then coalesce(c.title, d.title) else c.title end as known_title
    from affected a
    join corpus_documents c on c.corpus_id = :corpus_id and c.document_id = a.document_id
        and c.left_version is null
    join documents d on d.document_id = c.document_id
    -- read_as 0: before titles were stored here
    left join corpus_files f on f.corpus_id = :corpus_id and f.file_uri = c.file_uri
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
select document_id, held.first_version, held.ordinal, found.file_uri, found.line, found.record_id,
    found.variant_id,
       found.url, found.document_date, found.title, found.line_hash,
       case when found.file_uri is null then 'removed'
            when held.file_uri is null then 'added'
            when found.variant_id is distinct from held.variant_id
                or found.title is distinct from held.known_title then 'corrected'
            when (found.file_uri, found.line, found.record_id, found.title, found.line_hash)
                 is distinct from (held.file_uri, held.line, held.record_id, held.title, held.line_hash)
                     then 'moved'
            else 'same'
       end as change
from held
full join found using (document_id);
analyze outcomes

-- name: counts
-- What the files read now change in a corpus, in numbers. Read before ingestion_apply, while the tables hold
-- the newest version.
select documents.*, ids.changed
from (
    select count(*) filter (where change = 'added') as added,
           count(*) filter (where change = 'removed') as removed,
           count(*) filter (where change = 'corrected') as corrected
    from outcomes
) documents
cross join (
    select count(*) as changed
    from (
        select c.record_id, c.document_id
        from affected a
        join corpus_documents c on c.corpus_id = :corpus_id and c.record_id = a.record_id
            and c.left_version is null
        union all
        select s.record_id, s.document_id
        from affected a
        join corpus_spare_records s on s.corpus_id = :corpus_id and s.record_id = a.record_id
            and s.why in ('duplicate', 'near_duplicate')
    ) before
    join settled now using (record_id)
    where now.becomes <> 'same_id_later' and now.document_id <> before.document_id
) ids

-- name: apply
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
cross join (select coalesce(max(ordinal), -1) as ordinal from corpus_documents
    where corpus_id = :corpus_id) last
where o.change = 'added';

-- 3. Records that do not count, and records that are refused.
delete from corpus_spare_records s
using differences d
where s.corpus_id = :corpus_id and s.file_uri = d.file_uri and s.line = d.line
    and d.old_document_id is not null;

delete from corpus_spare_records s
using affected a
where s.corpus_id = :corpus_id and s.document_id = a.document_id;

delete from rejected_documents r
using read_files f
where r.corpus_id = :corpus_id and r.file_uri = f.file_uri;

delete from rejected_documents r
using settled s
where r.corpus_id = :corpus_id and r.file_uri = s.file_uri and r.line = s.line and s.was = 'same_id_later';

insert into corpus_spare_records
    (corpus_id, file_uri, line, document_id, record_id, url, document_date, title, line_hash, why, resembles)
select :corpus_id, file_uri, line, document_id, record_id, url, document_date, title, line_hash, becomes,
    resembles
from settled
where becomes <> 'document';

insert into rejected_documents (corpus_id, file_uri, line, reason, detail)
select :corpus_id, f.file_uri, r.line, r.reason, r.detail
from read_lines r
join read_files f using (file)
where r.kind = 'refused'
union all
select :corpus_id, replaced.file_uri, replaced.line, 'same_id_later', 'a later record has the same id'
from (
    select s.file_uri, s.line
    from read_files f
    join corpus_spare_records s on s.corpus_id = :corpus_id and s.file_uri = f.file_uri
        and s.why = 'same_id_later'
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
set content_sha256 = excluded.content_sha256, size_bytes = excluded.size_bytes, stamp = excluded.stamp,
    records = excluded.records,
    accepted = null, duplicates = null, rejected = null,
    usable = excluded.usable, refused = excluded.refused, read_as = excluded.read_as,
        ingested_at = excluded.ingested_at;

update corpus_files c
set accepted = c.usable - spare.duplicates - spare.replaced,
    duplicates = spare.duplicates,
    rejected = c.records - c.usable + spare.replaced
from (select file_uri from read_files union select file_uri from settled) touched
cross join lateral (
    select count(*) filter (where why in ('duplicate', 'near_duplicate')) as duplicates,
        count(*) filter (where why = 'same_id_later') as replaced
    from corpus_spare_records s
    where s.corpus_id = :corpus_id and s.file_uri = touched.file_uri
) spare
where c.corpus_id = :corpus_id and c.file_uri = touched.file_uri

-- name: file_sums
-- What the files of a corpus hold now, and how many of its texts are left out since they nearly repeat another.
select count(*) as files,
       coalesce(sum(records), 0)::bigint as records,
       coalesce(sum(accepted), 0)::bigint as documents,
       coalesce(sum(duplicates), 0)::bigint as duplicates,
       coalesce(sum(rejected), 0)::bigint as rejected,
       (select count(*) from corpus_spare_records spare
           where spare.corpus_id = :corpus_id and spare.why = 'near_duplicate') as near_duplicates
from corpus_files
where corpus_id = :corpus_id
