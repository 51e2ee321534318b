-- warn: a call of every tool of the run
select tool, released_calls
from {batch}
where released_calls < 1
