-- A corpus may leave out texts that nearly repeat another of its texts.

create table text_sketches (
    document_id uuid primary key references documents on delete cascade,
    numbers     integer[] not null check (cardinality(numbers) = 112)
);
comment on table text_sketches is 'Sketches of texts (MinHash), by which texts that nearly repeat one another are recognised; of corpora with near_duplicates in their address. Writer: stages/ingestion.py.';
comment on column text_sketches.document_id is 'The text.';
comment on column text_sketches.numbers is 'The least of each of 112 hashes over its runs of five words: the part that is equal in two texts estimates what they share (storage/text_sketches.py).';

create table text_bands (
    band        bigint,
    document_id uuid references text_sketches on delete cascade,
    primary key (band, document_id)
);
create index on text_bands (document_id);
comment on table text_bands is 'The 14 bands of each sketch: texts with an equal band are compared. Writer: stages/ingestion.py.';
comment on column text_bands.band is 'Hash of eight numbers of the sketch, with their place.';
comment on column text_bands.document_id is 'The text.';

alter table corpus_spare_records add column resembles uuid references documents on delete set null;
create index on corpus_spare_records (resembles) where resembles is not null;
alter table corpus_spare_records drop constraint corpus_spare_records_why_check;
alter table corpus_spare_records add constraint corpus_spare_records_why_check
    check (why in ('duplicate', 'same_id_later', 'near_duplicate'));
-- The lesser id stays, so that which text stays depends on the texts alone.
alter table corpus_spare_records add constraint a_near_duplicate_resembles_a_lesser_id
    check (resembles is null or why = 'near_duplicate' and resembles < document_id);
comment on table corpus_spare_records is 'Usable records of the newest version that are no documents of it: another record with the same text, nearly the same text or the same id counts. One of them counts again where that record disappears.';
comment on column corpus_spare_records.why is 'duplicate: an earlier record that counts, or that is a near_duplicate, has the same text. near_duplicate: the text resembles one with a lesser id. same_id_later: a later record has the same id, which is in record_id (also a row of rejected_documents).';
comment on column corpus_spare_records.resembles is 'Of a near_duplicate the text that it resembles, of those with the least ids; null once that was forgotten, until the next ingestion.';
