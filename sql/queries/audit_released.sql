-- What Postgres says of texts of a release: their calls, and the row that holds url and date in the run that made it (null: not a member).
select asked.document_id,
       (select member.variant_id from run_documents member where member.run_id = :run_id and member.document_id = asked.document_id) as variant_id,
       array(
           select cast(call.call_id as text) || ' ' || call.tool || ' ' || call.scoring_recipe_id
           from release_calls call
           where call.release_id = :release_id and call.document_id = asked.document_id
           order by 1
       ) as calls
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
