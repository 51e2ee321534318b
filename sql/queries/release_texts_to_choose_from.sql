-- The texts of the run that are among first_texts of any tool, each with its variant, which has its url and date. The corpus is read once.
create temporary table texts_to_choose_from on commit drop as
select member.document_id, member.variant_id
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, true) member
where member.document_id in (select variant_id from first_texts where not reads_record)
   or member.variant_id in (select variant_id from first_texts where reads_record);
alter table texts_to_choose_from add primary key (document_id);
analyze texts_to_choose_from
