delete from call_results where tool = :tool and tool_version = :tool_version
