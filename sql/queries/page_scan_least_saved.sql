-- Scored calls of one tool of a run between two loss reductions, those that save least first, from a place in that order on. Looks at
-- :scanned calls of the recipe at most; the columns scanned, last_reduction and last_call_id say how far it came, also where none matches.
with scanned as materialized (
    select document_id, call_id, loss_reduction, result
    from call_losses
    where scoring_recipe_id = :scoring_recipe_id
      and reason is null
      and loss_reduction >= :at_least
      and loss_reduction < :below
      and loss_reduction >= :after_reduction
      and (loss_reduction > :after_reduction or call_id > cast(:after_call_id as uuid))
    order by loss_reduction, call_id
    limit :scanned
),
last as (
    select loss_reduction, call_id, (select count(*) from scanned) as scanned from scanned order by loss_reduction desc, call_id desc limit 1
),
matching as (
    select scanned.document_id, scanned.call_id, scanned.loss_reduction
    from scanned
    join documents document on document.document_id = scanned.document_id
    join candidate_calls call
        on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = scanned.document_id and call.call_id = scanned.call_id
    where (
          -- A subquery that returns a value is computed row by row; `exists` would become a join with the whole corpus.
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
      and (cast(:input_only_after as boolean) is null or call.input_only_after = :input_only_after)
      and (cast(:is_released as boolean) is null
           or :is_released = exists (
               select from release_calls held where held.release_id = cast(:release_id as text) and held.call_id = scanned.call_id))
      and (cast(:carries as boolean) is null
           or :carries = carries_information(
               cast(:placebo_recipe_id as text), scanned.document_id, scanned.call_id, cast(:tau_information as double precision)))
    order by scanned.loss_reduction, scanned.call_id
    limit :at_most
)
select last.scanned, last.loss_reduction as last_reduction, last.call_id as last_call_id, matching.*
from last
left join matching on true
order by matching.loss_reduction, matching.call_id
