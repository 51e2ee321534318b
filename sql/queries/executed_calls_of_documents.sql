-- The candidate calls of these documents with their paragraph's bounds and the tool's results (nulls where it was not run).
select c.document_id, c.call_id, c.paragraph, f.start_char, f.end_char, c.position_token, c.position_char, c.call_input, c.call_text,
       c.input_key, c.effective_input, c.input_only_after, r.results, r.reason
from candidate_calls c
join filter_decisions f
    on f.filter_recipe_id = :filter_recipe_id and f.document_id = c.document_id and f.paragraph = c.paragraph
left join call_results r
    on r.tool = :tool and r.tool_version = :tool_version and r.input_key = c.input_key
where c.sampling_recipe_id = :sampling_recipe_id
  and c.document_id = any(cast(:document_ids as uuid[]))
order by c.document_id, c.position_char, c.call_id
