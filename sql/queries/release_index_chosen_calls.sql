-- Pages of texts are read by id; without statistics Postgres would read whole partitions for each page.
create index on releasable_calls (document_id) where left_out is null;
analyze releasable_calls
