-- fail: position probabilities in [0, 1]
select call_id, position_probability
from {batch}
where (position_probability between 0 and 1) is not true
