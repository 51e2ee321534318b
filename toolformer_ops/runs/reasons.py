"""What each count and each reason is called for people: on the run page, in notes and mails, and in the documentation.

In SQL and in files a reason is a name such as `rule_iii_not_sampled`; here are the words for it. Tools of
others have reasons of their own, which are read as they are spelled.
"""

from collections.abc import Mapping
from types import MappingProxyType

COUNTED: Mapping[str, str] = MappingProxyType(
    {
        "texts": "texts",
        "paragraphs": "paragraphs",
        "kept_paragraphs": "paragraphs for the model",
        "positions": "positions",
        "samples": "samples",
        "candidates": "candidate calls",
        "calls": "calls",
        "inputs": "distinct inputs",
        "executed": "executed",
        "from_cache": "answered before",
        "with_result": "with a result",
        "with_placebos": "calls with placebos",
        "without_placebos": "calls without placebos",
        "placebos": "placebos",
        "scored": "scored",
        "within_rounding": "that rounding may decide",
        "verified_in_float32": "of these verified in float32",
        "kept": "kept",
        "kept_texts": "texts with a kept call",
        "released": "released",
    }
)
"""What a stage counts beside its losses, in the order in which it is shown."""
TITLES: Mapping[str, str] = MappingProxyType(
    {
        **COUNTED,
        # Records of a corpus
        "invalid_json": "line is no JSON",
        "invalid_utf8": "line is not in UTF-8",
        "line_too_long": "line is too long",
        "not_an_object": "line is no JSON object",
        "no_text": "record has no text",
        "json_array": "file is one JSON array, not an object a line",
        "pretty_printed_json": "file is an object over several lines, not an object a line",
        "empty_text": "text is empty",
        "text_not_a_string": "text is no string",
        "title_not_a_string": "title is no string",
        "url_not_a_string": "url is no string",
        "id_not_a_string_or_whole_number": "id is neither a string nor a whole number",
        "id_too_long": "id is too long",
        "lone_surrogate": "text has half a character (a lone surrogate)",
        "unreadable_file": "file cannot be read",
        "empty_file": "file is empty",
        "not_a_file": "no file, but a pipe, a device or a link that leads nowhere",
        "outside_corpus": "leads out of the corpus' folder",
        "expands_too_far": "packed file expands too far",
        # Filters: which texts a tool is asked about
        "every_text": "asked in every text",
        "date_in_url": "date in the URL",
        "earlier_date_in_url": "date in the URL, earlier than the record's",
        "date_in_record": "date in the record",
        "no_url": "neither URL nor date",
        "no_date_in_url": "no date in the URL",
        "date_incomplete_in_url": "date in the URL lacks its day",
        "date_invalid_in_url": "date in the URL is no day of the calendar",
        "date_ambiguous_in_url": "date in the URL can be read in two ways",
        "dates_conflict_in_url": "two dates in the URL",
        "fewer_than_three_numbers": "fewer than three numbers",
        "rule_i_result_of_two_others": "a number is the result of two others",
        "rule_ii_sequence_before_number": "\u201cequals\u201d, \u201ctotal of\u201d or the like before a number",
        "rule_iii_sampled": "three numbers, drawn (1 % of such texts)",
        "rule_iii_not_sampled": "three numbers without a sum, not drawn (99 % of such texts)",
        "foreign_between_english": "foreign words between English ones",
        "foreign_not_between_english": "foreign words not between English ones",
        "no_foreign_chunk": "no foreign words",
        "only_numbers_or_symbols": "no words",
        "too_short_for_a_chunk_between_others": "too short for foreign words between others",
        "holds_pattern": "holds the tool's pattern",
        "no_pattern": "does not hold the tool's pattern",
        "holds_call_markup": "holds what reads as a call",
        "holds_no_call": "holds no call to build on",
        "longer_than_max_text_tokens": "longer than max_text_tokens",
        # Samples
        "texts_without_position": "texts in which no call starts",
        "positions_pruned_below": "places where no call can save enough, by proof",
        "duplicates_merged": "samples that are equal to others",
        "sample_without_end": "sample does not end",
        "sample_does_not_parse": "sample is no call",
        "sample_of_another_tool": "sample calls another tool",
        "sample_without_input": "sample has no input",
        "sample_with_unexpected_input": "sample has an input that the tool does not take",
        "sample_that_the_document_cannot_answer": "the text has no date to answer with",
        "sample_without_earlier_result": "second call does not use the first one's result",
        # Results
        "no_result": "the tool has no result",
        "tool_error": "the tool failed",
        "timed_out": "the tool took too long",
        "input_too_long": "input is too long",
        "empty_input": "input is empty",
        "empty_result": "result is empty",
        "result_too_long": "result is too long",
        "result_not_text": "result is no text",
        "result_lacks_field": "result lacks a field of the template",
        "repeats_document_text": "result only repeats the text",
        "rounds_to_zero": "result is 0.00 at two decimals",
        "division_by_zero": "division by zero",
        "divides_by_zero": "division by zero",
        "invalid_expression": "input is no sum",
        "expression_too_long": "sum is too long",
        "nested_too_deeply": "brackets are nested too deeply",
        "result_too_large": "result is too large",
        "no_match": "the search finds nothing",
        "no_answer": "no passage answers",
        "empty_query": "query is empty",
        "query_too_long": "query is too long",
        "search_failed": "the search failed",
        "already_english": "input is English already",
        "language_not_supported": "language is not known",
        "empty_translation": "translation is empty",
        "translation_unfinished": "translation does not end",
        "server_failed": "the tool's server failed",
        "server_refused": "the tool's server refused the input",
        "server_timed_out": "the tool's server took too long",
        "arguments_do_not_parse": "arguments cannot be read",
        "argument_missing": "an argument is missing",
        "argument_unknown": "an argument is not known",
        "argument_not_of_the_schema": "an argument does not fit the tool's schema",
        "document_cannot_answer": "the text has no date to answer with",
        # Losses
        "pruned_below": "cannot save enough, by proof",
        "loss_not_finite": "a loss is not a finite number",
        "not_executed": "the tool was not run",
        "input_only_after": "input comes only after the call",
        "process_killed": "its process was killed each time",
        "out_of_memory": "does not fit into memory",
        # Placebos
        "no_other_result": "no other text has another result",
        "only_compared": "only there to compare a sampled result with",
        # What is kept and released
        "below_threshold": "saves less than the threshold",
        "below_tau_information": "carries less information than the run asks for",
        "better_call_at_position": "another call at its place saves more",
        "result_does_not_follow": "the text does not go on with the result",
        "holds_evaluation_data": "its text holds evaluation data",
        "above_max_examples": "the tool has enough texts without it",
        "not_in_release": "not in the release",
        "no_release": "no release yet",
    }
)
"""By the name that SQL and files have."""


def title(reason: str) -> str:
    """Return the words for a reason; for one of a tool of others its name with spaces."""
    return TITLES.get(reason) or reason.replace("_", " ")
