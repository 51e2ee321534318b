select name, sha256 from schema_files order by name
