-- Which documents a run is about, from what each version of a corpus gained and lost.

create view run_documents as
select run.run_id, joined.document_id, coalesce(joined.variant_id, joined.document_id) as variant_id,
    joined.ordinal
from annotation_runs run
join corpus_joined joined on joined.corpus_id = run.corpus_id and joined.first_version <= run.corpus_version
left join corpus_left ended
    on ended.corpus_id = joined.corpus_id and ended.document_id = joined.document_id
        and ended.first_version = joined.first_version
where (ended.left_version is null or ended.left_version > run.corpus_version)
  and joined.ordinal < coalesce(run.ordinal_limit, 2147483647);

create view run_tool_documents as
select rt.run_id, rt.tool, member.document_id,
       case when rt.reads_record then member.variant_id else member.document_id end as variant_id,
       member.ordinal
from run_tools rt
join run_documents member on member.run_id = rt.run_id
where rt.last_document_id is null or member.document_id <= rt.last_document_id;

create view call_information as
select placebo_recipe_id, document_id, call_id, mean_reduction as placebo_reduction,
    mean_information as information, placebos,
       probability_with as probability
from placebo_losses
qualify row_number() over (partition by placebo_recipe_id, document_id, call_id order by number) = 1;
