-- warn: at least one kept call
select tool, kept_calls
from {batch}
where kept_calls < 1
