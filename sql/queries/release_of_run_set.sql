-- A run has one release: the newest that it made or found.
insert into run_releases (run_id, release_id, left_out)
values (:run_id, :release_id, cast(:left_out as jsonb))
on conflict (run_id) do update
set release_id = excluded.release_id, released_at = excluded.released_at, left_out = excluded.left_out
