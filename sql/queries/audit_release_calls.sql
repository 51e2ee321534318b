select count(*) as calls from release_calls where release_id = :release_id
