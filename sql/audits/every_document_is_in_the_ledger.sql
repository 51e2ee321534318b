-- fail: a ledger row for every stage that a document passes (else clear the shards of this tool, not this check: they do what is undone)
-- tool: checked_ledger
-- remedy: The tool's shards do what is undone, and then the check passes.
select stage_of_document, ledger_rows
from {batch}
where ledger_rows <> 1
