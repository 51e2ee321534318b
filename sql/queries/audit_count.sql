-- How much an audit found, and how much of it speaks against the rows that numbers are counted from.
select count(*) as found, count(repaired_at) as repaired, count(repair) as repairable,
       count(*) filter (
           where relation not in ('dataset_releases', 'judgements', 'quality_results', 'finetuned_models', 'published_artifacts', 'object', 'folder'))
           as in_rows
from audit_findings
where audit_id = :audit_id
