-- What the file of a schedule held, the newest first.
select content from schedule_versions where name = :name order by seen_at desc, version limit 20
