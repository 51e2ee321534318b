-- What Postgres says of texts of a release: their calls, and the row that holds url and date in the run that made it (null: not a member).
select asked.document_id, member.variant_id, member.url,
       array(
           select cast(call.call_id as text) || ' ' || call.tool || ' ' || call.scoring_recipe_id
           from release_calls call
           where call.release_id = :release_id and call.document_id = asked.document_id
           order by 1
       ) as calls
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
left join lateral (
    select held.variant_id, record.url
    from run_documents held
    join documents record on record.document_id = held.variant_id
    where held.run_id = :run_id and held.document_id = asked.document_id
) member on true
