-- Rows that the run's tool stages wrote themselves, by stage; `tool` null: of all tools.
select stage, sum(rows_written)::bigint as rows
from micro_batches
where run_id = :run_id and tool = coalesce(cast(:tool as text), tool)
group by stage
