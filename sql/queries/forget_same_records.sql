-- Records that hold, or held at another version of their corpus, one of the texts at hand and another text besides.
with held as (
    select corpus_id, record_id, document_id from corpus_documents where record_id is not null
    union
    select corpus_id, record_id, document_id from corpus_spare_records where record_id is not null
),
of_texts as (
    select distinct held.corpus_id, held.record_id from held join texts_to_forget using (document_id)
)
select corpora.uri, record_id, count(distinct held.document_id) as texts
from of_texts
join held using (corpus_id, record_id)
join corpora using (corpus_id)
where held.document_id not in (select document_id from texts_to_forget)
group by corpora.uri, record_id
order by corpora.uri, record_id
