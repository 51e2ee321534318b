-- Whether this session now holds the name; held until the end of the session.
select pg_try_advisory_lock(hashtextextended('toolformer ' || cast(:name as text), 0)) as locked
