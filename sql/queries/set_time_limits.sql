-- Limits of this transaction, in seconds: of the wait for a lock, and of a statement; 0 is none.
select set_config('lock_timeout', (:lock_seconds * 1000)::integer::text, true),
       set_config('statement_timeout', (:statement_seconds * 1000)::integer::text, true)
