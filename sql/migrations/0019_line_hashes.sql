-- Of a file that has changed, only the lines that have changed are parsed and compared: each record keeps the hash of its line.
-- Writer: stages/ingestion.py.

alter table corpus_documents add column line_hash bigint;
alter table corpus_spare_records add column line_hash bigint;
comment on column corpus_documents.line_hash is 'First 64 bits of the sha256 of the line as stored in the file: the next ingestion parses only lines with another hash. Null for rows of Parquet, and for records read before migration 0019.';
comment on column corpus_spare_records.line_hash is 'First 64 bits of the sha256 of the line, as in corpus_documents.';
