-- Whether a run has no kept call, though its tools are done.
select exists (select from run_tools where run_id = :run_id)
   and not exists (select from kept_calls where run_id = :run_id and releasable) as kept_nothing
