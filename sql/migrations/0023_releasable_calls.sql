-- A release has to say how many kept calls it leaves out. Where it holds the first 25,000 texts of a tool, it need not read the others for that.
-- Null for checks from before: what they counted is counted anew by the next one.

alter table checked_yields add column releasable_calls bigint check (releasable_calls between 0 and kept_calls);
comment on column checked_yields.releasable_calls is 'Of the kept calls those that may be released: their input stands not only after them. Null for checks from before migration 0023.';
