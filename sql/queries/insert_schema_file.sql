insert into schema_files (name, sha256) values (:name, :sha256)
