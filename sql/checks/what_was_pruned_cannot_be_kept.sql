-- fail: a bound below prune_below for every pruned position and call
select pruned, bound, prune_below
from {batch}
where (bound < prune_below) is not true
