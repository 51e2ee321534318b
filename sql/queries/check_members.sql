-- The documents to check: those of the run that no passed check covers, as the tool reads them. Their texts are read here alone.
create temporary table checked_members as
select
    member.variant_id,
    char_length(document.text) as text_length,
    strpos(document.text, :call_opening) > 0 as holds_call
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) member
left join documents document on document.document_id = member.variant_id
