-- Row to check: how much of one tool's work in one run was kept (kept_counts), the bounds of the run, and how many
-- of the samples that are checked the call length cut off.
create temporary table checked_yield as
select
    cast(:tool as text) as tool,
    cast(:judged_calls as bigint) as judged_calls,
    cast(:kept_calls as bigint) as kept_calls,
    cast(:kept_texts as bigint) as kept_texts,
    cast(:min_kept_texts as bigint) as min_kept_texts,
    coalesce(cast(:kept_calls as double precision) / nullif(:judged_calls, 0), 0) as kept_share,
    cast(:max_kept_share as double precision) as max_kept_share,
    sampled.samples,
    sampled.without_end
from (
    select coalesce(sum(items_in), 0) as samples, coalesce(sum(without_end), 0) as without_end from checked_samples
) as sampled
