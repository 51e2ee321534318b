-- fail: at least as many texts with a kept call as the run's min_kept_texts
-- tool: checked_yield
-- remedy: The view threshold_counts shows how many texts other thresholds keep; min_kept_texts is a choice of the run.
select tool, kept_texts, min_kept_texts
from {batch}
where kept_texts < min_kept_texts
