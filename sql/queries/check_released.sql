-- Tables for the rows of a release, which are then loaded from its files.
create temporary table checked_texts (document_id text, call_count integer, gives_text_back boolean);
create temporary table checked_calls (
    call_id text,
    tool text,
    position_char integer,
    text_length integer,
    position_probability double precision,
    loss_without_call double precision,
    loss_without_result double precision,
    loss_without_call_full_context double precision,
    loss_with_result double precision,
    loss_reduction double precision
)
