-- Pages of texts are read by id; without statistics Postgres would read whole partitions for each page.
create index on chosen_calls (document_id);
analyze chosen_calls
