-- A run has one release: the newest that it made or found.
insert into run_releases (run_id, release_id)
values (:run_id, :release_id)
on conflict (run_id) do update set release_id = excluded.release_id, released_at = excluded.released_at
