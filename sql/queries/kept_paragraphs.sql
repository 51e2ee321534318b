-- The paragraphs of these documents that a filter kept, in the order of the text.
select document_id, paragraph, start_char, end_char
from filter_decisions
where filter_recipe_id = :filter_recipe_id
  and document_id = any(cast(:document_ids as uuid[]))
  and kept
order by document_id, paragraph
