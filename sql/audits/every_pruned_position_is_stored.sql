-- fail: as many rows in pruned_positions as the ledger counts positions pruned
-- tool: checked_samples
-- remedy: `toolformer-ops audit --run` with the run's id names the damaged documents; --repair has the next run compute them again.
select stage_of_document, pruned_in_ledger, pruned_found
from {batch}
where pruned_in_ledger <> pruned_found
