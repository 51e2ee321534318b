-- How many texts are at hand, and which of these ids are not among them.
select (select count(distinct text_id) from texts_to_forget) as texts,
       array(select unnest(cast(:document_ids as uuid[])) except select document_id from texts_to_forget order by 1) as missing
