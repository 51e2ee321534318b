-- Another process finished some documents of this micro-batch first: its sums are those of its own ledger rows.
update micro_batches
set documents = :documents, rows_written = :rows_written, counts = :counts, seconds = :seconds,
    tokens = (
        select coalesce(sum(kept.tokens), 0)
        from (
            select about_tokens(sum(end_char - start_char)) as tokens
            from filter_decisions
            where filter_recipe_id = :filter_recipe_id
              and document_id = any(cast(:document_ids as uuid[]))
              and kept
            group by document_id
        ) kept
    )
where batch_id = :batch_id
