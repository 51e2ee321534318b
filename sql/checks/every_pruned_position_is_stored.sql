-- fail: as many rows in pruned_positions as the ledger counts positions pruned
select stage_of_document, pruned_in_ledger, pruned_found
from {batch}
where pruned_in_ledger <> pruned_found
