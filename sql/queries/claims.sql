-- Claims: which process computes a document, of those that could.

-- name: begin
insert into claimers (run_id, name, claims_until)
values (:run_id, :name, clock_timestamp() + make_interval(secs => :seconds))
returning claimer_id

-- name: go_on
update claimers set claims_until = clock_timestamp() + make_interval(secs => :seconds)
    where claimer_id = :claimer_id

-- name: take
-- Claim documents; returns those that no living process of another run has claimed.
insert into document_claims as claim (stage, recipe_id, document_id, claimer_id)
select :stage, :recipe_id, asked.document_id, :claimer_id
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
order by asked.document_id  -- as `release` locks them
on conflict (recipe_id, document_id, stage) do update set claimer_id = excluded.claimer_id
where not exists (
    select from claimers other
    where other.claimer_id = claim.claimer_id and other.run_id <> :run_id
        and other.claims_until > clock_timestamp())
returning document_id

-- name: release
with released as materialized (
    select document_id
    from document_claims
    where stage = :stage and recipe_id = :recipe_id and document_id = any(cast(:document_ids as uuid[]))
    order by document_id
    for update
)
delete from document_claims claim
using released
where claim.stage = :stage and claim.recipe_id = :recipe_id and claim.document_id = released.document_id

-- name: undone
-- Of these documents those that the stage has not finished, and whether a living process of another run has
-- claimed them.
select asked.document_id, exists (
           select from document_claims claim
           join claimers other using (claimer_id)
           where claim.recipe_id = :recipe_id and claim.document_id = asked.document_id
               and claim.stage = :stage
             and other.run_id <> :run_id and other.claims_until > clock_timestamp()
       ) as is_claimed
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
where not exists (
    select from stage_ledger done
    where done.recipe_id = :recipe_id and done.document_id = asked.document_id and done.stage = :stage)
order by asked.document_id

-- name: claimers_of
-- Who has claimed these documents.
select distinct claimer.name
from document_claims claim
join claimers claimer using (claimer_id)
where claim.recipe_id = :recipe_id and claim.stage = :stage
    and claim.document_id = any(cast(:document_ids as uuid[]))
order by claimer.name

-- name: end
-- A process has done, and with it processes that have ended long ago without saying so.
with ended as (
    delete from claimers
    where claimer_id = :claimer_id or claims_until < clock_timestamp() - interval '1 day'
    returning claimer_id
),
released as materialized (
    select claim.recipe_id, claim.document_id, claim.stage
    from document_claims claim
    join ended using (claimer_id)
    order by claim.document_id  -- as `take` locks them
    for update of claim
)
delete from document_claims claim
using released
where (claim.recipe_id, claim.document_id, claim.stage) = (released.recipe_id, released.document_id,
    released.stage)
