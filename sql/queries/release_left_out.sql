-- How many releasable calls the release leaves out, by tool and reason.
select tool, left_out as reason, count(*) as calls
from releasable_calls
where left_out is not null
group by tool, left_out
order by tool, left_out
