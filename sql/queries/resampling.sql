-- Documents whose rows an audit computes again, and the rows that are stored.

-- name: documents
-- Documents to compute again: those with calls from a place on in the order of their ids, which are hashes of
-- their texts, and then from the first one on. Not those that a stage has given up, which kill their process,
-- nor those whose text this audit found to be damaged.
with scored as (
    (select document_id, rows_written, 0 as turn
     from stage_ledger
     where stage = 'score' and recipe_id = :recipe_id and document_id > cast(:start as uuid)
         and rows_written > 0
     order by document_id
     limit :calls)
    union all
    (select document_id, rows_written, 1
     from stage_ledger
     where stage = 'score' and recipe_id = :recipe_id and document_id <= cast(:start as uuid)
         and rows_written > 0
     order by document_id
     limit :calls)
)
select scored.document_id, document.text, document.url, document.document_date
from (
    select *, sum(rows_written) over (order by turn, document_id) - rows_written as calls_before from scored
) scored
join documents document using (document_id)
where scored.calls_before < :calls
  and not exists (
      select from audit_findings damaged
      where damaged.audit_id = :audit_id and damaged.relation = 'documents'
          and damaged.place = cast(scored.document_id as text))
  and not exists (select from failed_documents given_up where given_up.document_id = scored.document_id
      and given_up.tool = :tool)
order by scored.turn, scored.document_id

-- name: placebo_losses
-- Placebos, to be compared with ones that are computed again; not those of documents that drew a result of a
-- text which was forgotten since.
select placebo.*
from placebo_losses placebo
where placebo.placebo_recipe_id = :recipe_id
  and placebo.document_id = any(cast(:document_ids as uuid[]))
  and not exists (
      select from placebo_losses other
      where other.placebo_recipe_id = :recipe_id and other.document_id = placebo.document_id
          and other.source is not null
        and not exists (
            select from placebo_pool_results pooled
            where pooled.placebo_recipe_id = :recipe_id and pooled.source = other.source))

-- name: call_losses
-- Rows of documents under a recipe, to be compared with rows that were computed again.
select * from call_losses where scoring_recipe_id = :recipe_id
    and document_id = any(cast(:document_ids as uuid[]))

-- name: call_results
-- Results of the inputs that documents ask, to be compared with results that were computed again.
select result.*
from call_results result
where result.tool = :tool
  and result.tool_version = :tool_version
  and result.input_key in (
      select call.input_key
      from candidate_calls call
      where call.sampling_recipe_id = :sampling_recipe_id
          and call.document_id = any(cast(:document_ids as uuid[]))
  )

-- name: candidate_calls
select * from candidate_calls where sampling_recipe_id = :recipe_id
    and document_id = any(cast(:document_ids as uuid[]))

-- name: filter_decisions
select * from filter_decisions where filter_recipe_id = :recipe_id
    and document_id = any(cast(:document_ids as uuid[]))

-- name: pruned_positions
select * from pruned_positions where sampling_recipe_id = :recipe_id
    and document_id = any(cast(:document_ids as uuid[]))
