-- Calls of one tool of a run in one of three orders (:sort), from a place in that order on: scored ones between two loss reductions, those that
-- save most first or least first; or, by document, those that were not scored for one reason. Looks at :scanned calls of the recipe at most;
-- the columns scanned and last_* say how far it came, also where none matches. Of the three scans Postgres runs the one that is asked for.
with scanned as materialized (
    select row_number() over (order by loss_reduction desc, call_id) as place, document_id, call_id, loss_reduction, result
    from (
        select document_id, call_id, loss_reduction, result
        from call_losses
        where :sort = 'most_saved'
          and scoring_recipe_id = :scoring_recipe_id
          and reason is null
          and loss_reduction >= :at_least
          and loss_reduction < :below
          and loss_reduction <= :after_loss_reduction
          and (loss_reduction < :after_loss_reduction or call_id > cast(:after_call_id as uuid))
        order by loss_reduction desc, call_id
        limit :scanned
    ) most_saved
    union all
    select row_number() over (order by loss_reduction, call_id), document_id, call_id, loss_reduction, result
    from (
        select document_id, call_id, loss_reduction, result
        from call_losses
        where :sort = 'least_saved'
          and scoring_recipe_id = :scoring_recipe_id
          and reason is null
          and loss_reduction >= :at_least
          and loss_reduction < :below
          and loss_reduction >= :after_loss_reduction
          and (loss_reduction > :after_loss_reduction or call_id > cast(:after_call_id as uuid))
        order by loss_reduction, call_id
        limit :scanned
    ) least_saved
    union all
    select row_number() over (order by document_id, call_id), document_id, call_id, loss_reduction, result
    from (
        select document_id, call_id, loss_reduction, result
        from call_losses
        where :sort = 'by_reason'
          and scoring_recipe_id = :scoring_recipe_id
          and reason = cast(:reason as text)
          and reason <> 'pruned_below'  -- as the index call_losses_not_scored says
          and (document_id, call_id) > (cast(:after_document_id as uuid), cast(:after_call_id as uuid))
        order by document_id, call_id
        limit :scanned
    ) by_reason
),
last as (
    select document_id, call_id, loss_reduction, place as scanned from scanned order by place desc limit 1
),
matching as (
    select scanned.place, scanned.document_id, scanned.call_id, scanned.loss_reduction
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
    order by scanned.place
    limit :at_most
)
select last.scanned, last.document_id as last_document_id, last.call_id as last_call_id, last.loss_reduction as last_loss_reduction, matching.*
from last
left join matching on true
order by matching.place
