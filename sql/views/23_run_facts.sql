create view run_facts as
select run.run_id, run.schedule, run.state, run.started_at, run.finished_at,
       cast(extract(epoch from coalesce(run.finished_at,
           now()) - run.started_at) as double precision) as seconds,
       run.corpus_uri, run.corpus_version, run.model_identity, array_to_string(run.tools, ', ') as tools,
       (select coalesce(max(progress.total), 0) from annotation_progress progress
        where progress.run_id = run.run_id and progress.stage = 'filter') as texts,
       (select coalesce(max(work.documents), 0) from run_work work
        where work.run_id = run.run_id and work.stage = 'filter') as new_texts,
       (select cast(coalesce(sum(counts.calls), 0) as bigint) from threshold_counts counts
        where counts.run_id = run.run_id and counts.is_keep_threshold) as kept_calls,
       made.release_id, release.documents as released_texts, release.calls as released_calls,
       (select trained.model_id from run_models trained where trained.run_id = run.run_id
           and not trained.without_calls) as model_id,
       (select trained.model_id from run_models trained where trained.run_id = run.run_id
           and trained.without_calls) as baseline_model_id,
       (select coalesce(sum(batch.seconds), 0) / 3600 from micro_batches batch
           where batch.run_id = run.run_id) as work_hours,
       cast(run.cost #>> '{total,device_hours}' as double precision) as device_hours,
       cast(run.estimate #>> '{total,device_hours}' as double precision) as device_hours_expected,
       run.problem, run.previous_run_id, run.code_version, run.image
from annotation_runs run
left join run_releases made on made.run_id = run.run_id
left join dataset_releases release on release.release_id = made.release_id;
comment on view run_facts is
    'One row a run, for lists and dashboards: when, how it ended, how much it took, kept and released, and '
    'what was made of it. Stored for finished runs; for the others counted at each look.';
comment on column run_facts.seconds is 'From its start to its end, or until now.';
comment on column run_facts.tools is
    'The tools of the run in the order in which they were chosen, with commas between.';
comment on column run_facts.texts is 'Documents of the run; 0 for a run that only finetunes.';
comment on column run_facts.new_texts is
    'Documents that a tool of this run filtered itself; the others are those of earlier runs.';
comment on column run_facts.kept_calls is 'Calls that its tools keep at their own thresholds.';
comment on column run_facts.release_id is 'Its release; null if it has none.';
comment on column run_facts.released_texts is 'Texts of the release.';
comment on column run_facts.released_calls is 'Calls of the release.';
comment on column run_facts.model_id is 'Its finetuned model; null if it has none.';
comment on column run_facts.baseline_model_id is
    'Its model that was finetuned without calls; null if it has none.';
comment on column run_facts.work_hours is
    'Hours of work of all stages that the run did itself, processes added up; without starting them and '
    'loading models.';
comment on column run_facts.device_hours is
    'Hours of the work that needs the device: sampling, scoring, and tools that use one. Null until the run '
    'ends.';
comment on column run_facts.device_hours_expected is
    'The same by the estimate from before the run; null if there was none.';
call inherit_comments('run_facts', 'annotation_runs');
