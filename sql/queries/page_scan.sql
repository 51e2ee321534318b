-- Keys of a tool's calls in one of three orders (:sort), from a place in that order on, at most :scanned: scored ones between two loss reductions,
-- those that save most first or least first; or, by document, those that were not scored for one reason. Of the three scans Postgres runs
-- the one that is asked for. They may be of other runs with the recipe.
select coalesce(document.variant_of, found.variant_id) as document_id, found.variant_id, found.call_id, found.loss_reduction
from (
    (select document_id as variant_id, call_id, loss_reduction
     from call_losses
     where :sort = 'most_saved'
       and scoring_recipe_id = :scoring_recipe_id
       and reason is null
       and loss_reduction >= :at_least
       and loss_reduction < :below
       and loss_reduction <= :after_loss_reduction
       and (loss_reduction < :after_loss_reduction or call_id > cast(:after_call_id as uuid))
     order by loss_reduction desc, call_id
     limit :scanned)
    union all
    (select document_id, call_id, loss_reduction
     from call_losses
     where :sort = 'least_saved'
       and scoring_recipe_id = :scoring_recipe_id
       and reason is null
       and loss_reduction >= :at_least
       and loss_reduction < :below
       and loss_reduction >= :after_loss_reduction
       and (loss_reduction > :after_loss_reduction or call_id > cast(:after_call_id as uuid))
     order by loss_reduction, call_id
     limit :scanned)
    union all
    (select document_id, call_id, loss_reduction
     from call_losses
     where :sort = 'by_reason'
       and scoring_recipe_id = :scoring_recipe_id
       and reason = cast(:reason as text)
       and reason <> 'pruned_below'  -- as the index call_losses_not_scored says
       and (document_id, call_id) > (cast(:after_variant_id as uuid), cast(:after_call_id as uuid))
     order by document_id, call_id
     limit :scanned)
) found
join documents document on document.document_id = found.variant_id
