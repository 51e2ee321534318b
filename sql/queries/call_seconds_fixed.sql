select seconds from measured_call_seconds where tool = :tool and tool_version = :tool_version
