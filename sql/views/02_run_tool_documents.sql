create view run_tool_documents as
select rt.run_id, rt.tool, member.document_id,
       case when rt.reads_record then member.variant_id else member.document_id end as variant_id,
       member.ordinal
from run_tools rt
join run_documents member on member.run_id = rt.run_id
where rt.last_document_id is null or member.document_id <= rt.last_document_id;
comment on view run_tool_documents is
    'The documents of each run as each tool reads them; with until_kept those up to '
    'run_tools.last_document_id.';
comment on column run_tool_documents.variant_id is
    'The id under which the tool''s rows are stored (filter_decisions, candidate_calls, call_losses, '
    'stage_ledger): the document, or for a tool that reads url and date the variant of it.';
call inherit_comments('run_tool_documents', 'run_tools', 'run_documents');
