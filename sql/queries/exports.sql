-- What an export takes of the run that made a release, beyond the calls that the release holds.

-- name: run_of_release
-- The run that made the release at an address first, and the release whose texts that run went over, if it
-- made chains.
select release.release_id, release.run_id, run.chained_release_id
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.uri = :uri

-- name: calls_of_texts
-- The released calls of these texts (is_released), and the other calls whose loss with their result is known.
-- Of these, outcome kept: kept, and not released, since another kept call was.
-- bound: no call saves more, nats; information: mean over its so many placebos, nats; null without.
select document_uuid as document_id, call_id, tool, call_input, result, position_char,
    reduction_bound as bound, information, placebos,
       loss_without_call, loss_with_result, outcome, call_id = any (cast(:released as text[])) as is_released
from candidates_of(:run_id)
where document_uuid = any (cast(:document_ids as uuid[]))
  and loss_with_result is not null
  and (outcome in ('kept', 'pruned', 'below_threshold', 'like_a_placebo')
       or call_id = any (cast(:released as text[])))
order by document_uuid, position_char, call_uuid

-- name: texts_without_help
-- Of a run's texts with a scored call, so many in which no call saves anything, those with the smallest
-- hashes of seed and id, in the order of their ids (one row without a text if there is none). With each: how
-- many texts were tried, hold a kept call, hold none but a call that may save something by what is known of
-- it, and hold only calls that save nothing.
with tried as materialized (
    select document_uuid as document_id,
        min(position_char) filter (where loss_with_result is not null) as first_char,
           bool_or(outcome = 'kept') as has_kept_call,
           bool_or(coalesce(reduction_bound > 0, true) and outcome <> 'no_result') as may_help
    from candidates_of(:run_id)
    group by document_uuid
    having count(loss_with_result) > 0
),
counts as (
    select count(*) as tried, count(*) filter (where has_kept_call) as with_kept_call,
           count(*) filter (where may_help and not has_kept_call) as may_help,
               count(*) filter (where not may_help) as without_help
    from tried
)
select chosen.document_id, chosen.first_char, counts.*
from counts
left join (
    select document_id, first_char
    from tried
    where not may_help
    order by sha256(convert_to(cast(:seed as text) || ' ' || cast(document_id as text), 'UTF8')), document_id
    limit cast(:texts as bigint)
) chosen on true
order by chosen.document_id

-- name: texts
select document_id, text
from documents
where document_id = any (cast(:document_ids as uuid[]))
order by document_id
