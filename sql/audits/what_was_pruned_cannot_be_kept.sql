-- fail: a bound below prune_below for every pruned position and call
-- tool: checked_pruned
-- remedy: `toolformer-ops audit --run` with the run's id names the damaged documents; --repair has the next run compute them again.
select pruned, bound, prune_below
from {batch}
where (bound < prune_below) is not true
