-- The texts at hand: their documents and the variants of these, each with the document that names the text.
create temporary table texts_to_forget (
    document_id uuid primary key,
    text_id     uuid not null
) on commit drop
