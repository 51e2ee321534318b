-- fail: at most the run's max_kept_share of the scored calls kept: more, and results leak into the text
select tool, kept_share, max_kept_share
from {batch}
where kept_share > max_kept_share
