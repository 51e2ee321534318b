-- Limits the statements that follow in this transaction, as 2000ms.
select set_config('statement_timeout', :milliseconds, true)
