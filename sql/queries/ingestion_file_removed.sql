-- A file of the newest version is gone.
insert into read_files (file, file_uri, change) values (:file, :file_uri, 'removed')
