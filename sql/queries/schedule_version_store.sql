-- Keep a file of a version of the schedules; a version that came back is the newest.
insert into schedule_versions (version, name, content)
values (:version, :name, :content)
on conflict (version, name) do update set seen_at = excluded.seen_at
