-- Wait until this session holds the name; held until the end of the session.
select pg_advisory_lock(hashtextextended('toolformer ' || cast(:name as text), 0))
