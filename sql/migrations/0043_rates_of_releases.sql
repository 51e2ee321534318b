-- False-discovery rates are no part of a release's id: a night that changes only rates makes no new release.
alter table dataset_releases add column rates jsonb;
comment on column dataset_releases.rates is 'False-discovery rates on its card, by tool: those of the run that made it first. The rates of each run are in threshold_counts. Null where the card is not known, such as of releases from before migration 0043.';
comment on column dataset_releases.definition is 'What the release''s id is the hash of besides its texts and calls: model, tools with their recipes and thresholds, choices; until migration 0043 also false-discovery rates. Null for releases from before migration 0029 that were not released again.';
