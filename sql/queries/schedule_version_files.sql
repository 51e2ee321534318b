-- The files of a version of the schedules.
select name, content from schedule_versions where version = :version order by name
