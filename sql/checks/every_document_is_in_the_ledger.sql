-- fail: a ledger row for every stage that a document passes (else run the stage again)
select stage_of_document, ledger_rows
from {batch}
where ledger_rows <> 1
