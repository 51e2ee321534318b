-- Calls of one tool of a run that were not scored for one reason, by document, from a place in that order on. Reads the index
-- call_losses_not_scored; looks at :scanned calls of the recipe at most and says how far it came, as page_scan_most_saved.sql does.
with scanned as materialized (
    select document_id, call_id, result
    from call_losses
    where scoring_recipe_id = :scoring_recipe_id
      and reason = :reason
      and (document_id, call_id) > (cast(:after_document_id as uuid), cast(:after_call_id as uuid))
    order by document_id, call_id
    limit :scanned
),
last as (
    select document_id, call_id, (select count(*) from scanned) as scanned from scanned order by document_id desc, call_id desc limit 1
),
matching as (
    select scanned.document_id, scanned.call_id
    from scanned
    join documents document on document.document_id = scanned.document_id
    join candidate_calls call
        on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = scanned.document_id and call.call_id = scanned.call_id
    where (
          select true
          from corpus_documents member
          where member.corpus_id = :corpus_id
            and member.document_id = coalesce(document.variant_of, document.document_id)
            and member.first_version <= :corpus_version
            and (member.left_version is null or member.left_version > :corpus_version)
            and member.ordinal < :below_ordinal
            and scanned.document_id = case when :reads_record then coalesce(member.variant_id, member.document_id) else member.document_id end
          limit 1
      )
      and (cast(:contains as text) is null
           or strpos(lower(document.text), lower(:contains)) > 0 or strpos(lower(document.url), lower(:contains)) > 0
           or strpos(lower(call.call_text), lower(:contains)) > 0 or strpos(lower(scanned.result), lower(:contains)) > 0)
    order by scanned.document_id, scanned.call_id
    limit :at_most
)
select last.scanned, last.document_id as last_document_id, last.call_id as last_call_id, matching.*
from last
left join matching on true
order by matching.document_id, matching.call_id
