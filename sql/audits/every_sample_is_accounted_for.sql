-- fail: samples = candidates + duplicates + rejected samples
-- tool: checked_samples
-- remedy: `toolformer-ops audit --run` with the run's id names the damaged documents; --repair has the next run compute them again.
select stage_of_document, items_in, items_out
from {batch}
where items_in <> items_out
