-- Where an ingestion collects what it reads, until the version is made. The tables belong to the session and end with it.
create temporary table read_files (
    file           integer primary key,
    file_uri       text collate "C" not null,
    change         text not null,
    content_sha256 text,
    size_bytes     bigint,
    stamp          text,
    records        integer,
    usable         integer,
    refused        jsonb,
    compared       boolean not null default false  -- records of lines that are the same were left out; read_gone has the other lines
);
create temporary table read_records (
    file          integer not null,
    line          integer not null,
    document_id   uuid not null,
    record_id     text,
    url           text,
    document_date date,
    title         text,
    line_hash     bigint
);
create temporary table read_gone (
    file integer not null,
    line integer not null
);
create temporary table read_rejections (
    file   integer not null,
    line   integer not null,
    reason text not null,
    detail text not null
)
