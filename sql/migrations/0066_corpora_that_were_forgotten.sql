-- When a corpus was forgotten as a whole, its memberships went, also those of texts that other corpora hold: no later run over it follows from
-- the numbers of an earlier one.

alter table corpora add column memberships_deleted_at timestamptz;
comment on column corpora.memberships_deleted_at is 'When the corpus was last forgotten as a whole, with all of its memberships; null if it never was. Numbers of runs that were stored before are nothing that those of a later run follow from.';
