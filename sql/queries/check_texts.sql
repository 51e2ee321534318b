-- Rows to check: the texts with calls that one tool would release. Those whose calls are all plainly written give the text back; into the
-- others calls are put, and taken out again, outside of Postgres.
create temporary table checked_texts as
select cast(document_id as text) as document_id, true as gives_text_back
from checked_work
where is_releasable
group by document_id
having bool_and(is_plainly_written is true)
