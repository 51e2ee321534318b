-- What starting a shard's process takes is measured, so that shards are planned by it.

alter table micro_batches add column start_up_seconds double precision check (start_up_seconds >= 0);
comment on column micro_batches.start_up_seconds is 'Seconds from the start of the process until it could work, with loading its model, on the first micro-batch that it committed after that. Null on its others, and where no model was loaded but for filter, which needs none.';
create index micro_batches_start_up on micro_batches (batch_id) where start_up_seconds is not null;
comment on index micro_batches_start_up is 'The newest start-ups, for the plan of shards.';
