-- Seconds of calls, and the margin within which rounding decides.

-- name: fixed_call_seconds
select seconds from measured_call_seconds where tool = :tool and tool_version = :tool_version

-- name: measured_call_seconds
-- The median seconds of a tool's calls with a result: of this version, or else of the version that was executed last.
select tool_version as measured_version, percentile_cont(0.5) within group (order by seconds::double precision) as seconds, count(*) as calls
from call_results
where tool = :tool and reason is null
group by tool_version
order by tool_version = :tool_version desc, max(created_at) desc, tool_version
limit 1

-- name: fix_call_seconds
insert into measured_call_seconds (tool, tool_version, seconds, calls, measured_version)
values (:tool, :tool_version, :seconds, :calls, :measured_version)
on conflict do nothing

-- name: rounding_margin
-- What is allowed for rounding in a model's number format; no row if it was not measured.
select margin
from rounding_margins
where model_identity = :model_identity and device = :device and number_format = :number_format

-- name: insert_rounding_margin
-- Keep what was measured; the first of several processes counts.
insert into rounding_margins (model_identity, device, number_format, calls, mean_difference, largest_difference, margin)
values (:model_identity, :device, :number_format, :calls, :mean_difference, :largest_difference, :margin)
on conflict do nothing
