delete from schema_files where name like 'views/%'
