-- How far a run is, and how long it still takes, is counted in tokens: a text may be a hundred times as long as another.

create function about_tokens(characters bigint)
    returns bigint
    language sql immutable strict parallel safe
    return (characters + 3) / 4;
comment on function about_tokens(bigint) is 'About how many tokens so many characters are: four of English prose are one, as records.py has it. No tokenizer is asked.';

alter table micro_batches add column tokens bigint check (tokens >= 0);
comment on column micro_batches.tokens is 'About how many tokens the filter kept of these documents (about_tokens). Null for work from before migration 0062.';
