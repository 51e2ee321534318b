-- Runs with equal recipes at the same time share their work: a document is claimed before a stage computes it.

create unlogged table claimers (
    claimer_id   uuid primary key default gen_random_uuid(),
    run_id       text not null,
    name         text not null,
    claims_until timestamptz not null
);
comment on table claimers is 'The processes that claim documents. A process puts off the end of its claims as long as it lives, and deletes its row when it has done. Unlogged: after a crash of Postgres it is empty. Writer: runs/claims.py.';
comment on column claimers.claimer_id is 'Its id, which is random: numbers would begin again after a crash of Postgres.';
comment on column claimers.run_id is 'The run that it works for. Another process of the run, such as the next try, may take its claims at once.';
comment on column claimers.name is 'The name of its sessions in Postgres: stage, tool, shard, process, machine, run.';
comment on column claimers.claims_until is 'When processes of other runs may take its claims.';

create unlogged table document_claims (
    stage       text check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
    recipe_id   text,
    document_id uuid,
    claimer_id  uuid not null,
    primary key (recipe_id, document_id, stage)
);
create index on document_claims (claimer_id);
comment on table document_claims is 'The documents that a process has claimed, and has not finished. A claim decides who computes and no row: a document that two processes compute all the same is in the ledger once. Unlogged. Writer: runs/claims.py.';
comment on column document_claims.stage is 'filter, sample, execute, score or placebo.';
comment on column document_claims.recipe_id is 'The recipe of the stage.';
comment on column document_claims.document_id is 'The document, or the variant of it that the tool reads.';
comment on column document_claims.claimer_id is 'Who has claimed it; a claimer that is in `claimers` no more claims nothing.';
