-- Audit: the sums of a corpus. What its files are said to hold against the rows; its newest version against its files; documents at each
-- version against membership. Files with a text that was forgotten since their ingestion, and versions before a text was forgotten, hold
-- less than they say, rightly.
with file as materialized (
    select file_uri, records, accepted, duplicates, rejected, usable, read_as = -1 as has_forgotten
    from corpus_files
    where corpus_id = :corpus_id
),
held as (
    select file_uri, count(*) as documents from corpus_documents
    where corpus_id = :corpus_id and left_version is null group by file_uri
),
spare as (
    select file_uri, count(*) as duplicates from corpus_spare_records
    where corpus_id = :corpus_id and why = 'duplicate' group by file_uri
),
refused as (
    select file_uri, sum(counted.records) as rejected,
           sum(case counted.reason when 'same_id_later' then counted.records else least(counted.records, :refused_rows) end) as shown
    from rejected_records counted
    where counted.corpus_id = :corpus_id
    group by file_uri
),
shown as (
    select file_uri, sum(case reason when 'same_id_later' then rows else least(rows, :refused_rows) end) as rows
    from (
        select file_uri, reason, count(*) as rows from rejected_documents where corpus_id = :corpus_id group by file_uri, reason
    ) reasons
    group by file_uri
),
newest as (
    select * from corpus_versions where corpus_id = :corpus_id order by version desc limit 1
),
summed as (
    select count(*) as files, coalesce(sum(records), 0) as records, coalesce(sum(accepted), 0) as documents,
           coalesce(sum(duplicates), 0) as duplicates, coalesce(sum(rejected), 0) as rejected, coalesce(bool_or(has_forgotten), false) as has_forgotten
    from file
),
joined as (
    select first_version as version, count(*) as documents from corpus_documents where corpus_id = :corpus_id group by first_version
),
gone as (
    select left_version as version, count(*) as documents from corpus_documents
    where corpus_id = :corpus_id and left_version is not null group by left_version
),
member as (
    select made.version, made.documents as said,
           (select coalesce(sum(documents), 0) from joined where joined.version <= made.version)
               - (select coalesce(sum(documents), 0) from gone where gone.version <= made.version) as documents
    from corpus_versions made
    where made.corpus_id = :corpus_id
),
compared as (
    select 'corpus_files' as relation, file.file_uri as place, sum.name, sum.expected, sum.found
    from file
    left join held using (file_uri)
    left join spare using (file_uri)
    left join refused using (file_uri)
    left join shown using (file_uri)
    cross join lateral (values
        ('documents', file.accepted, coalesce(held.documents, 0)),
        ('duplicates', case when file.usable is not null then file.duplicates end, coalesce(spare.duplicates, 0)),
        ('rejected records', file.rejected, coalesce(refused.rejected, 0)),
        ('rows of rejected records', coalesce(refused.shown, 0), coalesce(shown.rows, 0))
    ) as sum (name, expected, found)
    where not file.has_forgotten
    union all
    select 'corpus_versions', format('version %s of corpus %s', newest.version, cast(:corpus_id as text)), sum.name, sum.expected, sum.found
    from newest
    cross join summed
    cross join lateral (values
        ('files', newest.files, summed.files), ('records', newest.records, summed.records),
        ('documents', newest.documents, summed.documents), ('duplicates', newest.duplicates, summed.duplicates),
        ('rejected records', newest.rejected, summed.rejected)
    ) as sum (name, expected, found)
    where not summed.has_forgotten
    union all
    select 'corpus_versions', format('version %s of corpus %s', member.version, cast(:corpus_id as text)), 'members', member.said, member.documents
    from member
    where not exists (select from forgotten_documents)
      -- A member that is lost from the newest version is found with its file.
      and not exists (select from file join held using (file_uri) where file.accepted <> held.documents)
      and (select coalesce(sum(accepted), 0) from file) = (select coalesce(sum(documents), 0) from held)
),
found as (
    select case when bool_or(found < expected) then 'lost' else 'doubled' end as kind, relation, place,
           'expected ' || string_agg(format('%s %s, found %s', expected, name, found), '; ' order by name) as what,
           'Read the files again (--repair marks them for the next `toolformer-ops stage ingest`); sums of an older version stay as they are.'
               as remedy,
           jsonb_build_object('action', 'read_again', 'corpus_id', cast(:corpus_id as text),
                              'lacks_members', bool_or(name in ('documents', 'members') and found < expected)) as repair
    from compared
    where expected <> found
    group by relation, place
)
select cast(null as text) as position,
       (select count(*) from file) + (select count(*) from member) as items,
       (select count(*) from file where has_forgotten) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
