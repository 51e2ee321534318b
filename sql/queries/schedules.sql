-- Versions of schedule files.

-- name: contents
-- What the file of a schedule held, the newest first.
select content from schedule_versions where name = :name order by seen_at desc, version limit 20

-- name: store
-- Keep a file of a version of the schedules; a version that came back is the newest.
insert into schedule_versions (version, name, content)
values (:version, :name, :content)
on conflict (version, name) do update set seen_at = excluded.seen_at

-- name: files
select name, content from schedule_versions where version = :version order by name
