-- Versions of the DAG bundles.

-- name: schedule
-- What the file of a schedule held, the newest first, and the tools that had tasks then.
select schedule.content, tools.content as tools
from bundle_versions as schedule
left join bundle_versions as tools on tools.version = schedule.version and tools.name = 'tools.json'
where schedule.name = :name
order by schedule.seen_at desc, schedule.version
limit 20

-- name: store
-- Keep a file of a version of a bundle; a version that came back is the newest.
insert into bundle_versions (version, name, content)
values (:version, :name, :content)
on conflict (version, name) do update set seen_at = excluded.seen_at

-- name: files
select name, content from bundle_versions where version = :version order by name
