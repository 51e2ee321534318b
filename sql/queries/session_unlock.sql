select pg_advisory_unlock(hashtextextended('toolformer ' || cast(:name as text), 0))
