-- fail: as many rows as the ledger says and the stage before asks for
-- tool: checked_ledger
-- remedy: `toolformer-ops audit --run` with the run's id names the damaged documents; --repair has the next run compute them again.
select stage_of_document, rows_written, rows_found, rows_expected
from {batch}
where rows_written <> rows_found or rows_found <> rows_expected
