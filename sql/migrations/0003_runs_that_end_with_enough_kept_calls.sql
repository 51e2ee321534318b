-- A tool of a run may end at a text: the run's choice until_kept.
drop function if exists members_beyond cascade;
alter table run_tools add column last_document_id uuid;
comment on column run_tools.last_document_id is 'With until_kept: the tool''s texts in this run are those with an id up to this one, the fewest that hold so many kept calls. Null without until_kept, before that many are kept, and if the corpus holds fewer.';
