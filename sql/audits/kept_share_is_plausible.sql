-- fail: at most the run's max_kept_share of the scored calls kept: more, and results leak into the text
-- tool: checked_yield
-- remedy: Read some calls of the view kept_calls: does the text hold their results already? max_kept_share is a choice of the run.
select tool, kept_share, max_kept_share
from {batch}
where kept_share > max_kept_share
