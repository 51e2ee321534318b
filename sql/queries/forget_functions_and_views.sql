delete from schema_files where name like 'functions/%' or name like 'views/%'
