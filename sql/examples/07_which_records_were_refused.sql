-- Which records of my corpus were refused?
-- By reason, with one place to look at, for the corpus of a run.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select r.reason, count(*) as records, min(r.file_uri || ' line ' || r.line) as such_as, min(r.detail) as detail
from rejected_documents r
where r.corpus_id = (select corpus_id from annotation_runs where run_id = run_or_newest(:'run'))
group by r.reason
order by records desc, r.reason;
