-- fail: ordinals of the members that joined, without gaps and in the order of files and lines
-- corpus: changed corpus_documents
-- remedy: Restore the rows from a backup: ordinals decide which documents a run with a limit annotates.
with joined as (
    select member.corpus_id, member.first_version, member.document_id, member.ordinal,
           case when version.made_at = file.ingested_at then member.file_uri end as file_uri, member.line
    from corpus_documents member
    join corpus_versions version on version.corpus_id = member.corpus_id and version.version = member.first_version
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
           and ordinal < lag(ordinal) over (partition by corpus_id, first_version, file_uri is null order by file_uri collate "C", line)
               as is_before
    from joined
),
sums as (
    select corpus_id, first_version as version, count(*) as members, min(ordinal) as lowest, max(ordinal) as highest,
           min(cast(document_id as text)) filter (where is_before) as example
    from placed
    group by corpus_id, first_version
),
added as (
    select corpus_id, version, added, sum(added) over (partition by corpus_id order by version) as until from corpus_versions
)
select format('ordinals of version %s of corpus %s', version, corpus_id) as place,
       format('%s to %s for %s members%s', lowest, highest, members, ', and not in order at document ' || example) as found
from sums
join added using (corpus_id, version)
where example is not null
   -- If a text was forgotten, or a member is lost, its place is empty.
   or members = added and (lowest <> until - added or highest <> until - 1)
