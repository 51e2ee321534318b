-- fail: judgements of calls that a release holds
-- release: orphaned judgements
-- remedy: Restore the row from a backup, or delete it.
select cast(judged.submission_id as text) as place,
       format('one of call %s of %s, which release %s does not hold', judged.call_id, judged.tool, judged.release_id) as found
from judgements judged
where judged.release_id = any(cast(:release_ids as text[]))
  and not exists (
      select from release_calls call
      where call.release_id = judged.release_id and call.call_id = judged.call_id and call.document_id = judged.document_id
        and call.tool = judged.tool and call.scoring_recipe_id = judged.scoring_recipe_id)
