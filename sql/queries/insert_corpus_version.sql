-- The next version of a corpus: what its files hold now, and what changed since the version before. The sums of the files are a second
-- way to the number of documents, and a constraint compares them.
insert into corpus_versions
    (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, duplicates, rejected)
select :corpus_id, :version, :documents, :added, :removed, :corrected, :changed, :documents - :added - :corrected,
       :files, :records, :duplicates, :rejected
