-- What a tool of a run is from its registration on, so that an audit finds what was changed since.

alter table run_tools add column registered_hash uuid;
comment on column run_tools.registered_hash is 'tool_registration_hash of the row as the tool was registered; null for a tool of an earlier version''s run.';
