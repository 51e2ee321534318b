-- Files that are JSON, and no JSON Lines, are refused under reasons of their own.

comment on column rejected_documents.reason is 'corrupt_json, not_an_object, no_text, text_not_a_string, empty_text, invalid_utf8, lone_surrogate, line_too_long, same_id_later, forgotten, empty_file, json_array, pretty_printed_json, unreadable_file, expands_too_far, not_a_file or outside_corpus (a link that leads out of the corpus folder, or to where this deployment lets nobody read).';
