-- The unfinished audit of this scope, or a new one.
with unfinished as (
    select audit_id from audits where scope = :scope and scope_id = :scope_id and finished_at is null order by audit_id desc limit 1
),
opened as (
    insert into audits (scope, scope_id) select :scope, :scope_id where not exists (select from unfinished) returning audit_id
)
select audit_id, true as is_continued from unfinished
union all
select audit_id, false from opened
