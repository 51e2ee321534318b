create view kept_calls as
select *, not input_only_after as releasable
from scored_calls
where is_kept(null, gain, keep_threshold);

create macro kept_calls_of(run := '') as table select * from kept_calls where run_id = run_or_newest(run);
