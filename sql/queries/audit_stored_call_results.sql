-- Results of the inputs that documents ask, to be compared with results that were computed again.
select result.*
from call_results result
where result.tool = :tool
  and result.tool_version = :tool_version
  and result.input_key in (
      select call.input_key
      from candidate_calls call
      where call.sampling_recipe_id = :sampling_recipe_id and call.document_id = any(cast(:document_ids as uuid[]))
  )
