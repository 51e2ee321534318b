insert into measured_call_seconds (tool, tool_version, seconds, calls, measured_version)
values (:tool, :tool_version, :seconds, :calls, :measured_version)
on conflict do nothing
