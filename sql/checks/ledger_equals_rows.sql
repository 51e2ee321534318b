-- fail: as many rows as the ledger says and the stage before asks for
select stage_of_document, rows_written, rows_found, rows_expected
from {batch}
where rows_written <> rows_found or rows_found <> rows_expected
