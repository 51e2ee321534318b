-- How many characters a filter kept of each of these documents; a document of which it kept nothing has no row.
select document_id, sum(end_char - start_char) as characters
from filter_decisions
where filter_recipe_id = :filter_recipe_id
  and document_id = any(cast(:document_ids as uuid[]))
  and kept
group by document_id
