-- Wait until no other transaction holds this name; held until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('toolformer ' || cast(:name as text), 0))
