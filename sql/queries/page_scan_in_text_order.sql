-- Candidate calls of one tool of a run in the order of the corpus, from a place in that order on, scored or not. Looks at :scanned texts
-- at most; the columns scanned and last_* say how far it came, also where no call matches.
with members as materialized (
    select document_id, case when :reads_record then coalesce(variant_id, document_id) else document_id end as variant_id, ordinal
    from corpus_documents
    where corpus_id = :corpus_id
      and first_version <= :corpus_version
      and (left_version is null or left_version > :corpus_version)
      and ordinal >= :after_ordinal
      and ordinal < :below_ordinal
      and (cast(:document_id as uuid) is null or document_id = cast(:document_id as uuid) or variant_id = cast(:document_id as uuid))
    order by ordinal
    limit :scanned
),
last as (
    select max(ordinal) as ordinal, count(*) as scanned from members
),
matching as (
    select call.document_id, call.call_id, call.position_char, members.ordinal
    from members
    join documents document on document.document_id = members.variant_id
    cross join lateral (
        -- With its offset Postgres looks up the calls of each text by their index, and reads no partition whole.
        select * from candidate_calls
        where sampling_recipe_id = :sampling_recipe_id and candidate_calls.document_id = members.variant_id
        offset 0
    ) call
    left join lateral (
        select * from call_losses
        where scoring_recipe_id = :scoring_recipe_id and call_losses.document_id = call.document_id and call_losses.call_id = call.call_id
        offset 0
    ) loss on true
    where (members.ordinal > :after_ordinal
           or (call.position_char, call.call_id) > (cast(:after_position_char as integer), cast(:after_call_id as uuid)))
      and (:every_call
           or (cast(:reason as text) is not null and loss.reason = :reason)
           or (:not_scored_yet and loss.call_id is null)
           or (cast(:at_least as double precision) is not null and loss.reason is null
               and loss.loss_reduction >= :at_least and loss.loss_reduction < :below))
      and (cast(:contains as text) is null
           or strpos(lower(document.text), lower(:contains)) > 0 or strpos(lower(document.url), lower(:contains)) > 0
           or strpos(lower(call.call_text), lower(:contains)) > 0 or strpos(lower(loss.result), lower(:contains)) > 0)
      and (cast(:input_only_after as boolean) is null or call.input_only_after = :input_only_after)
      and (cast(:is_released as boolean) is null
           or :is_released = exists (
               select from release_calls held where held.release_id = cast(:release_id as text) and held.call_id = call.call_id))
      and (cast(:carries as boolean) is null
           or :carries = carries_information(
               cast(:placebo_recipe_id as text), call.document_id, call.call_id, cast(:tau_information as double precision)))
    order by members.ordinal, call.position_char, call.call_id
    limit :at_most
)
select last.scanned, last.ordinal + 1 as last_ordinal, -1 as last_position_char, '00000000-0000-0000-0000-000000000000'::uuid as last_call_id,
       matching.*
from last
left join matching on true
order by matching.ordinal, matching.position_char, matching.call_id
