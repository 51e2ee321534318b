-- Pages of texts are read by id.
create index on chosen_calls (document_id)
