-- A try that has ended: its micro-batch is committed with this statement, or its process ends in order.
delete from micro_batch_tries where try_id = :try_id
