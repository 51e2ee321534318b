-- Table for the texts with calls that one tool would release; calls are put into texts and taken out again outside of Postgres.
create temporary table checked_texts (document_id text, gives_text_back boolean)
