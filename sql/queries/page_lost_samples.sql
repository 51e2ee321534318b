-- Of each tool and reason the first samples that became no call, with the end of the text before them.
select tool, reason, right(text_before, 60) as text_before, sample_text, sample_count
from run_lost_samples
where run_id = :run_id and place <= 5
order by tool, reason, place
