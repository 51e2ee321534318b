-- What each run ended in. Releases and models are named by their content, so that two runs may end in the same one:
-- dataset_releases.run_id and finetuned_models.run_id name the run that made it first.

create table run_releases (
    run_id      text primary key references annotation_runs,
    release_id  text not null references dataset_releases,
    released_at timestamptz not null default now()
);
comment on table run_releases is 'The release of each run. Writer: stages/release.py.';
comment on column run_releases.run_id is 'The run.';
comment on column run_releases.release_id is 'Its release: the newest, where a run was released again after a tool was mended.';
comment on column run_releases.released_at is 'When the run was released last.';

create table run_models (
    run_id       text primary key references annotation_runs,
    model_id     text not null references finetuned_models,
    published_at timestamptz not null default now()
);
comment on table run_models is 'The finetuned model of each run. Writer: stages/finetuning.py.';
comment on column run_models.run_id is 'The run.';
comment on column run_models.model_id is 'Its model.';
comment on column run_models.published_at is 'When the run''s model was published last.';
