-- Models behind endpoints that propose calls, and their answers.

-- name: register
-- A proposer whose licence is said anew has the newest.
insert into proposer_endpoints (proposer, model, api, licence, parameters)
values (:proposer, :model, :api, :licence, cast(:parameters as jsonb))
on conflict (proposer) do update
set licence = excluded.licence
where proposer_endpoints.licence <> excluded.licence

-- name: answers
select request_key, reply from proposer_answers where request_key = any(cast(:request_keys as uuid[]))

-- name: keep_answers
-- Of texts that were forgotten meanwhile nothing is kept.
insert into proposer_answers (request_key, proposer, document_id, reply)
select answer.request_key, :proposer, document.document_id, cast(answer.reply as jsonb)
from unnest(cast(:request_keys as uuid[]), cast(:document_ids as uuid[]), cast(:replies as text[]))
     as answer (request_key, document_id, reply)
join documents document on document.document_id = answer.document_id
on conflict do nothing

-- name: of_run
-- The proposer of a run behind an endpoint, with the days on which its answers about the run's texts came; no
-- row if it has none.
select endpoint.model, endpoint.licence,
       cast(min(answer.answered_at) at time zone 'utc' as date) as first_day,
       cast(max(answer.answered_at) at time zone 'utc' as date) as last_day
from proposer_endpoints endpoint
join proposer_answers answer on answer.proposer = endpoint.proposer
join run_documents member on member.document_id = answer.document_id and member.run_id = :run_id
where endpoint.proposer = :proposer
group by endpoint.model, endpoint.licence
