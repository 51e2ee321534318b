delete from release_calls where release_id = :release_id
