-- About how many tokens a filter kept of each of these documents; a document of which it kept nothing has no row.
select document_id, about_tokens(sum(end_char - start_char)) as tokens
from filter_decisions
where filter_recipe_id = :filter_recipe_id
  and document_id = any(cast(:document_ids as uuid[]))
  and kept
group by document_id
