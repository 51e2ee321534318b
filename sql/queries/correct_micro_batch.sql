-- Another process finished some documents of this micro-batch first: its sums are those of its own ledger rows.
update micro_batches
set documents = :documents, tokens = :tokens, rows_written = :rows_written, counts = :counts, seconds = :seconds
where batch_id = :batch_id
