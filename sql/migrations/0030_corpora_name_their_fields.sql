-- The address of a corpus says by which names its records have the fields.

comment on column corpora.uri is 'Address of the corpus: file:///... or s3://bucket/prefix, without a slash at the end, and behind it the names of its fields where these are not the usual ones: s3://bucket/ccnet --field text=raw_content.';
comment on column annotation_runs.corpus_uri is 'Address of the corpus with the names of its fields, as in corpora.uri.';
comment on column rejected_documents.reason is 'corrupt_json, not_an_object, no_text, no_field (of Parquet: a column that the address of the corpus names), text_not_a_string, empty_text, invalid_utf8, lone_surrogate, line_too_long, same_id_later, forgotten, empty_file, json_array, pretty_printed_json, unreadable_file, expands_too_far, not_a_file or outside_corpus (a link that leads out of the corpus folder, or to where this deployment lets nobody read).';
