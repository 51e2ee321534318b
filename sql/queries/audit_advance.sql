-- A page of a check is done.
insert into audit_checks as known (audit_id, check_name, subject, position, items, unprovable, seconds, finished_at)
values (:audit_id, :check_name, :subject, coalesce(cast(:position as text), ''), :items, :unprovable, :seconds,
        case when cast(:position as text) is null then now() end)
on conflict (audit_id, check_name, subject) do update
set position = excluded.position, items = known.items + excluded.items, unprovable = known.unprovable + excluded.unprovable,
    seconds = known.seconds + excluded.seconds, finished_at = excluded.finished_at
