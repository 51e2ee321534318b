-- warn: at least one kept call
-- tool: checked_yield
-- remedy: The view threshold_counts shows what lower thresholds would keep.
select tool, kept_calls
from {batch}
where kept_calls < 1
