-- A packed file that holds too much is refused for a reason of its own.
comment on column rejected_documents.reason is 'corrupt_json, not_an_object, no_text, text_not_a_string, empty_text, invalid_utf8, lone_surrogate, line_too_long, same_id_later, forgotten, empty_file, expands_too_far or unreadable_file.';
