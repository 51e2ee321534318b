-- Corpora and their versions.

-- name: corpora_are_named_by_their_address
-- fail: an address whose hash is the corpus's id
-- corpus: changed corpora
-- remedy: Restore the row from a backup: annotation_runs.corpus_uri of its runs has the address, too.
select corpus_id as place, format('%s, whose hash is %s', uri, hashed.id) as found
from corpora
cross join lateral (select left(encode(sha256(convert_to(uri, 'UTF8')), 'hex'), 16) as id) hashed
where corpus_id = any(cast(:corpus_ids as text[])) and corpus_id <> hashed.id

-- name: corpus_files_are_those_of_their_version
-- fail: the hash and the number of records with which the newest version read the file
-- corpus: changed corpus_files
-- remedy: Compare the hash with that of the file, and restore the wrong row from a backup.
select file.file_uri as place,
       format('%s of %s records in corpus_files, and %s of %s in corpus_version_files', file.content_sha256,
           file.records,
              made.content_sha256, made.records) as found
from corpus_files file
-- A file that says the same in other bytes makes no version.
join corpus_versions version on version.corpus_id = file.corpus_id and version.made_at = file.ingested_at
join corpus_version_files made on made.corpus_id = file.corpus_id and made.version = version.version
    and made.file_uri = file.file_uri
where file.corpus_id = any(cast(:corpus_ids as text[]))
  and (file.content_sha256, file.records) is distinct from (made.content_sha256, made.records)

-- name: corpus_versions_are_there
-- fail: a version of a corpus that runs, finished work, members or later versions name
-- corpus: lost corpus_versions
-- remedy: Restore the row from a backup, or correct what names it.
select format('version %s of corpus %s', named.version, named.corpus_id) as place,
       'no row, and it is named by ' || string_agg(distinct named.by_what, ', ') as found
from (
    select corpus_id, corpus_version as version, 'run ' || run_id as by_what from annotation_runs
    union all
    select corpus_id, version, 'finished_work of ' || recipe_id from finished_work
    union all
    select distinct corpus_id, first_version, 'corpus_documents' from corpus_documents
    union all
    select distinct corpus_id, left_version, 'corpus_documents' from corpus_documents
        where left_version is not null
    union all
    select corpus_id, generate_series(1, max(version)), 'a later version' from corpus_versions
        group by corpus_id
) named
left join corpus_versions known using (corpus_id, version)
where known.corpus_id is null and named.corpus_id = any(cast(:corpus_ids as text[]))
group by named.corpus_id, named.version

-- name: forgotten_texts_are_gone
-- fail: no text that was forgotten
-- corpus: orphaned documents
-- remedy: Forget it again: `toolformer-ops forget --document` with the id.
select cast(document.document_id as text) as place,
    format('the text, forgotten at %s', date_trunc('second', forgotten.forgotten_at)) as found
from forgotten_documents forgotten
join documents document on forgotten.document_id in (document.document_id, document.variant_of)
where forgotten.removed_at is not null

-- name: ordinals_follow_the_files
-- fail: ordinals of the members that joined, without gaps and in the order of files and lines
-- corpus: changed corpus_documents
-- remedy: Restore the rows from a backup: ordinals decide which documents a run with a limit annotates.
with joined as (
    select member.corpus_id, member.first_version, member.document_id, member.ordinal,
           case when version.made_at = file.ingested_at then member.file_uri end as file_uri, member.line
    from corpus_documents member
    join corpus_versions version on version.corpus_id = member.corpus_id
        and version.version = member.first_version
    left join corpus_files file on file.corpus_id = member.corpus_id and file.file_uri = member.file_uri
    where member.corpus_id = any(cast(:corpus_ids as text[]))
      -- A corrected record keeps its place.
      and not exists (
          select from corpus_documents before
          where before.corpus_id = member.corpus_id and before.document_id = member.document_id
            and before.left_version = member.first_version)
),
placed as (
    -- A file that was read again since may hold its lines in another order.
    select corpus_id, first_version, document_id, ordinal,
           file_uri is not null
           and ordinal < lag(ordinal) over (partition by corpus_id, first_version, file_uri is null
               order by file_uri collate "C", line)
               as is_before
    from joined
),
sums as (
    select corpus_id, first_version as version, count(*) as members, min(ordinal) as lowest,
        max(ordinal) as highest,
           min(cast(document_id as text)) filter (where is_before) as example
    from placed
    group by corpus_id, first_version
),
added as (
    select corpus_id, version, added, sum(added) over (partition by corpus_id order by version) as until
        from corpus_versions
)
select format('ordinals of version %s of corpus %s', version, corpus_id) as place,
       format('%s to %s for %s members%s', lowest, highest, members,
           ', and not in order at document ' || example) as found
from sums
join added using (corpus_id, version)
where example is not null
   -- If a text was forgotten, or a member is lost, its place is empty.
   or members = added and (lowest <> until - added or highest <> until - 1)

-- name: variants_of_members_are_of_their_text
-- fail: a variant of the member's own text
-- corpus: changed corpus_documents
-- remedy: Restore the row from a backup: the variant has the url and date that tools read.
select format('%s of corpus %s from version %s', member.document_id, member.corpus_id,
    member.first_version) as place,
       format('variant %s, of %s', member.variant_id,
           coalesce(cast(variant.variant_of as text), 'no text')) as found
from corpus_documents member
join documents variant on variant.document_id = member.variant_id
where member.corpus_id = any(cast(:corpus_ids as text[]))
  and variant.variant_of is distinct from member.document_id
