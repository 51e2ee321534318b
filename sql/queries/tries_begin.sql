-- A micro-batch that is about to be worked on; returns the number of the try. The row must outlive the client, not Postgres's machine: the
-- commit does not wait until it is on the disk.
insert into micro_batch_tries (run_id, tool, stage, recipe_id, document_ids)
select :run_id, :tool, :stage, :recipe_id, cast(:document_ids as uuid[])
where set_config('synchronous_commit', 'off', true) = 'off'
returning try_id
