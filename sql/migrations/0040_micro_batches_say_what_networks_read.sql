-- What the language models of a micro-batch have read, and what their cards could have computed meanwhile: so a slow node is seen.

alter table micro_batches
    add column network_tokens     bigint check (network_tokens >= 0),
    add column network_seconds    double precision check (network_seconds >= 0),
    add column network_operations double precision check (network_operations >= 0),
    add column peak_operations    double precision check (peak_operations >= 0),
    add column cards              text;
comment on column micro_batches.network_tokens is 'Tokens that language models read for it, each as often as it was read. Null if none did, and on rows of before this was counted.';
comment on column micro_batches.network_seconds is 'Seconds in which they did, with what else was computed for it. Null with network_tokens.';
comment on column micro_batches.network_operations is 'Operations of their matrix products, without attention. Null with network_tokens, and of mixtures of experts.';
comment on column micro_batches.peak_operations is 'Operations in bfloat16 that the cards could have done in network_seconds, by their maker. Null with network_tokens, on a CPU and on cards whose peak is not known.';
comment on column micro_batches.cards is 'On what they computed, such as NVIDIA H200 or cpu. Null with network_tokens.';
