-- An audit's own books: what it looks at, how far it is, what it found.

-- name: count
-- How much an audit found, and how much of it speaks against the rows that numbers are counted from.
select count(*) as found, count(repaired_at) as repaired, count(repair) as repairable,
       count(*) filter (
           where relation not in ('dataset_releases', 'judgements', 'quality_results', 'finetuned_models',
               'run_models', 'evaluation_scores',
                                'published_artifacts', 'object', 'folder'))
           as in_rows
from audit_findings
where audit_id = :audit_id

-- name: scope_corpora
select corpus_id, uri from corpora
where :scope = 'all'
   or (:scope = 'corpus' and corpus_id = :scope_id)
   or (:scope = 'run' and corpus_id in (select run.corpus_id from annotation_runs run
       where run.run_id = :scope_id))
order by corpus_id

-- name: scope_runs
-- The runs of a scope, with their tools and recipes, as far as these are one chain; a run without tools has
-- one row without.
select run.run_id, run.corpus_id, run.state, rt.tool, rt.tool_version, rt.reads_record, rt.filter_recipe_id,
    rt.sampling_recipe_id,
       rt.execution_recipe_id, rt.scoring_recipe_id, rt.placebo_recipe_id
from annotation_runs run
left join run_tools rt on rt.run_id = run.run_id and is_one_chain(rt)
where :scope = 'all'
   or (:scope = 'corpus' and run.corpus_id = :scope_id)
   or (:scope = 'run' and run.run_id = :scope_id)
order by run.started_at, run.run_id, rt.tool

-- name: scope_releases
select release_id, run_id, uri, manifest_sha256, documents, calls, definition,
    withdrawn_at is not null as is_withdrawn,
       (select made.chained_release_id is not null from annotation_runs made
           where made.run_id = release.run_id) as is_chained
from dataset_releases release
where :scope = 'all'
   or (:scope = 'release' and release.release_id = :scope_id)
   or (:scope = 'model' and release.release_id = (select model.release_id from finetuned_models model
       where model.model_id = :scope_id))
   or (:scope = 'run' and release.release_id in (select made.release_id from run_releases made
       where made.run_id = :scope_id))
   or (:scope = 'corpus' and release.run_id in (select run.run_id from annotation_runs run
       where run.corpus_id = :scope_id))
order by release_id

-- name: scope_models
select model.model_id, model.run_id, model.release_id, model.uri, model.manifest_sha256, model.definition,
    model.without_calls,
       model.training_loss, model.best_step, model.development_perplexity,
           model.withdrawn_at is not null as is_withdrawn
from finetuned_models model
join annotation_runs trained on trained.run_id = model.run_id
where :scope = 'all'
   or (:scope = 'model' and model.model_id = :scope_id)
   or (:scope = 'run' and model.model_id in (select made.model_id from run_models made
       where made.run_id = :scope_id))
   or (:scope = 'corpus' and trained.corpus_id = :scope_id)
order by model.model_id

-- name: scope_artifacts
select uri, kind, identity, manifest_sha256, bytes from published_artifacts order by uri

-- name: open
-- The unfinished audit of this scope, or a new one.
with unfinished as (
    select audit_id from audits where scope = :scope and scope_id = :scope_id and finished_at is null
        order by audit_id desc limit 1
),
opened as (
    insert into audits (scope, scope_id) select :scope, :scope_id where not exists (select from unfinished)
        returning audit_id
)
select audit_id, true as is_continued from unfinished
union all
select audit_id, false from opened

-- name: progress
-- How far a check of a subject is; no row if it was not begun.
select position, finished_at is not null as is_finished from audit_checks
where audit_id = :audit_id and check_name = :check_name and subject = :subject

-- name: insert_findings
-- Findings of an audit; one of the same place is there once. unless: a place that, if it was found, explains
-- the finding.
insert into audit_findings (audit_id, check_name, kind, relation, place, what, remedy, repair)
select :audit_id, :check_name, kind, relation, place, what, remedy, nullif(repair - 'unless', '{}')
from jsonb_to_recordset(cast(:found as jsonb)) as found (kind text, relation text, place text, what text,
    remedy text, repair jsonb)
where not exists (
    select from audit_findings known
    where known.audit_id = :audit_id and known.place = found.repair ->> 'unless'
        and found.place <> found.repair ->> 'unless'
)
on conflict (audit_id, relation, place) do nothing

-- name: advance
-- A page of a check is done.
insert into audit_checks as known (audit_id, check_name, subject, position, items, unprovable, seconds,
    finished_at)
values (:audit_id, :check_name, :subject, coalesce(cast(:position as text), ''), :items, :unprovable,
    :seconds,
        case when cast(:position as text) is null then now() end)
on conflict (audit_id, check_name, subject) do update
set position = excluded.position, items = known.items + excluded.items,
    unprovable = known.unprovable + excluded.unprovable,
    seconds = known.seconds + excluded.seconds, finished_at = excluded.finished_at

-- name: sums
-- What each check of an audit looked at and found.
select done.check_name as name, sum(done.items)::bigint as items, sum(done.unprovable)::bigint as unprovable,
    sum(done.seconds) as seconds,
       (select count(*) from audit_findings found where found.audit_id = :audit_id
           and found.check_name = done.check_name) as findings
from audit_checks done
where done.audit_id = :audit_id
group by done.check_name

-- name: close
update audits set finished_at = now() where audit_id = :audit_id

-- name: findings
-- The findings of an audit after a number, in the order in which they were found.
select finding_id, check_name, kind, relation, place, what, remedy, repair,
    repaired_at is not null as is_repaired
from audit_findings
where audit_id = :audit_id and finding_id > :after
order by finding_id
limit :page_size

-- name: repaired
update audit_findings set repaired_at = now() where finding_id = any(cast(:finding_ids as bigint[]))
