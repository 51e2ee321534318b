-- fail: at least as many texts with a kept call as the run's min_kept_texts
select tool, kept_texts, min_kept_texts
from {batch}
where kept_texts < min_kept_texts
