-- The id of a call no longer depends on which record of a text was ingested first.

comment on column candidate_calls.call_id is 'First 128 bits of a sha256 over the recipe, what the tool reads (the text; its record, if the tool reads url and date), place and call.';
