-- What a tool said where it has no result, such as the message of a database.

alter table call_results add column message text not null default '';
comment on column call_results.message is 'What was said where there is no result, such as the message of a database (no such column: prise); empty where the reason says all, and in rows from before this column.';
