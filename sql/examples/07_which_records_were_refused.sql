-- Which records of my corpus were refused?
-- By reason, with one place to look at, for the corpus of the newest run.
select r.reason, count(*) as records, min(r.file_uri || ' line ' || r.line) as such_as, min(r.detail) as detail
from rejected_documents r
where r.corpus_id = (select corpus_id from annotation_runs order by started_at desc limit 1)
group by r.reason
order by records desc, r.reason;
