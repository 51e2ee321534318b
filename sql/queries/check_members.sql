-- The documents to check: those of the run that no passed check covers, as the tool reads them.
create temporary table checked_members as
select document_id, variant_id
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record)
