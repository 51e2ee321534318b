-- Texts keep their control characters.

comment on column documents.text is 'The text as it is annotated: the record''s text, with U+2400 for U+0000, which Postgres cannot store. All character offsets of other tables count its Unicode code points from 0.';
comment on column documents.escaped_characters is 'How many times the record''s text holds U+0000, each replaced by U+2400. Before 2026-11-26 all control characters but tab and line ends were replaced (U+0001 by U+2401 and so on).';
