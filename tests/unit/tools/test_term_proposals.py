"""Which calls the tool of a server proposes with the terms of a file, and how the server lists them."""

import logging
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from mcp_types import CallToolResult, TextContent
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from tests.tool_files import served, write_tool
from toolformer_ops.config import Settings
from toolformer_ops.errors import InfrastructureError, ToolError
from toolformer_ops.records import Document
from toolformer_ops.runs.reasons import title
from toolformer_ops.tools.files.answering import MOST_PROPOSED_CALLS
from toolformer_ops.tools.servers import term_proposals
from toolformer_ops.tools.servers.listed_terms import terms_in, write_listed_terms
from toolformer_ops.tools.servers.served_tool import ServedTool

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
    "required": ["city"],
}
CITY_AND_DATE = {**CITY, "required": ["city", "unit"]}


def tool_with(folder: Path, terms: str, *, keys: str = "", schema=CITY, fixed: str = "") -> ServedTool:
    (folder / "terms.txt").write_text(terms)
    tables = f'[proposals]\nterms = "terms.txt"\n{keys}\n{fixed}'
    return ServedTool(write_tool(folder, "Weather", "weather", tables=tables, schema=schema))


def proposed(tool: ServedTool, text: str) -> list[tuple[str, str]]:
    """By call, what follows it in the text, up to the next space, and its input."""
    proposals = tool.open_proposer(Settings()).proposals(Document.of(text))
    return [(text[call.char :].split(maxsplit=1)[0], call.input) for call in proposals.calls]


def left_out(tool: ServedTool, text: str) -> dict[str, int]:
    return dict(tool.open_proposer(Settings()).proposals(Document.of(text)).left_out)


def test_a_file_without_terms_cannot_propose(tmp_path):
    assert not ServedTool(write_tool(tmp_path, "Weather", "weather", schema=CITY)).can_propose


def test_a_file_with_terms_can_propose(tmp_path):
    assert tool_with(tmp_path, "Paris\n").can_propose


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("In Paris it was 21 degrees.", [("21", "Paris")]),
        ("Of Peru the capital is Cusco, he says.", [("Cusco,", "Peru")]),
        ("It cost ($48) in Paris.", []),
        ("Paris paid ($48) for it.", [("($48)", "Paris")]),
        ("Paris is old. The town has 12 bridges.", [("12", "Paris")]),
        ("Paris has 2 airports, Lima 1 of them.", [("2", "Paris"), ("1", "Lima")]),
        ("Paris 1 2 3 4 5", [("1", "Paris"), ("2", "Paris"), ("3", "Paris")]),
        ("Parisians bought 3 hats.", []),
        ("Paris-3 is a name.", []),
        ("Paris " + "and so on " * 40 + "3", []),
    ],
)
def test_a_call_stands_before_numbers_or_names_behind_its_term(tmp_path, text, calls):
    assert proposed(tool_with(tmp_path, "Paris\nLima\nPeru\n"), text) == calls


def test_the_longest_term_of_a_place_counts(tmp_path):
    tool = tool_with(tmp_path, "York\nNew York\n")
    assert proposed(tool, "New York has 8 million people.") == [("8", "New York")]


def test_a_word_in_small_letters_is_no_name(tmp_path):
    assert proposed(tool_with(tmp_path, "Turkey\n"), "The turkey weighed 9 pounds.") == []


def test_a_common_term_is_left_out(tmp_path):
    tool = tool_with(tmp_path, "Reading\nParis\n", keys='common = ["Reading"]')
    assert proposed(tool, "Reading takes 2 hours.") == []


def test_a_common_term_is_counted_once_a_text(tmp_path):
    tool = tool_with(tmp_path, "Reading\nParis\n", keys='common = ["Reading"]')
    assert left_out(tool, "Reading takes 2 hours. Reading is slow.") == {"proposal_of_common_key": 1}


def test_what_is_left_out_has_a_title():
    assert title("proposal_of_common_key").startswith("names in the text")


@pytest.mark.parametrize("terms", ["Paris\nParis\n", "\ufeffParis\r\n\r\n  Paris  \n", "Paris\nparis"])
def test_a_term_that_the_file_has_twice_is_one(tmp_path, terms):
    assert proposed(tool_with(tmp_path, terms), "Paris has 2 airports.") == [("2", "Paris")]


def test_terms_that_no_text_is_searched_for_are_logged(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        tool_with(tmp_path, "Paris\nUK\n12\n" + "x" * 200).open_proposer(Settings())
    assert "3 lines of" in caplog.text


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (b"UK\n12\n", "expected a term of at least three letters in a line of .*terms.txt, found none"),
        (b"Par\xffis\n", "expected terms in UTF-8 at .*terms.txt, found"),
    ],
)
def test_a_file_without_terms_is_refused(tmp_path, terms, said):
    tool = tool_with(tmp_path, "")
    (tmp_path / "terms.txt").write_bytes(terms)
    with pytest.raises(ToolError, match=said):
        tool.open_proposer(Settings())


def test_a_missing_file_of_terms_names_what_writes_it(tmp_path):
    tool = tool_with(tmp_path, "", keys='listed_by = "cities"')
    (tmp_path / "terms.txt").unlink()
    with pytest.raises(ToolError, match=r"found none\. It is written by refresh-tool"):
        tool.proposer_version(Settings())


def test_too_many_terms_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(term_proposals, "MOST_TERMS", 2)
    with pytest.raises(ToolError, match=r"at most 2 terms, found 3 in .*Leave out those"):
        tool_with(tmp_path, "Paris\nLima\nRome\n").open_proposer(Settings())


def test_a_file_of_terms_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(term_proposals, "MOST_BYTES", 10)
    with pytest.raises(ToolError, match="terms of at most 10 bytes, found 16"):
        tool_with(tmp_path, "Paris\nLima\nRome\n").open_proposer(Settings())


def test_an_argument_beside_others_is_named(tmp_path):
    tool = tool_with(tmp_path, "Paris\n", schema=CITY_AND_DATE, fixed='[fixed]\nunit = "C"')
    assert proposed(tool, "In Paris it was 21 degrees.") == [("21", "Paris")]


def test_a_term_of_an_optional_argument_is_written_with_its_name(tmp_path):
    tool = tool_with(tmp_path, "Paris\n", keys='argument = "city"', schema={**CITY, "required": []})
    assert proposed(tool, "In Paris it was 21 degrees.") == [("21", 'city: "Paris"')]


def test_a_tool_that_needs_other_arguments_is_refused(tmp_path):
    with pytest.raises(ToolError, match=r"found city of a tool .* needs city, unit\. Fix the others"):
        tool_with(tmp_path, "Paris\n", schema=CITY_AND_DATE)


def test_an_argument_that_the_tool_does_not_have_is_refused(tmp_path):
    with pytest.raises(ToolError, match="found town of a tool with city, which needs city"):
        tool_with(tmp_path, "Paris\n", keys='argument = "town"')


def test_proposals_without_a_file_are_refused(tmp_path):
    with pytest.raises(ToolError, match="expected `terms`, the file with a term in each line"):
        ServedTool(write_tool(tmp_path, "Weather", "weather", tables='[proposals]\nlisted_by = "cities"'))


def test_a_list_is_written_beside_the_tool_file_alone(tmp_path):
    tables = '[proposals]\nterms = "../terms.txt"\nlisted_by = "cities"'
    with pytest.raises(ToolError, match=r"a file beside the tool file.*found '\.\./terms\.txt'"):
        ServedTool(write_tool(tmp_path, "Weather", "weather", tables=tables))


def test_another_term_is_another_version_of_the_proposer(tmp_path):
    tool = tool_with(tmp_path, "Paris\n")
    before = tool.proposer_version(Settings())
    (tmp_path / "terms.txt").write_text("Paris\nLima\n")
    assert tool.proposer_version(Settings()) != before


def test_another_common_term_is_another_version_of_the_proposer(tmp_path):
    before = tool_with(tmp_path, "Paris\n").proposer_version(Settings())
    assert tool_with(tmp_path, "Paris\n", keys='common = ["Paris"]').proposer_version(Settings()) != before


def test_terms_leave_the_version_of_answers(tmp_path):
    before = tool_with(tmp_path, "Paris\n").version(Settings(), "")
    assert tool_with(tmp_path, "Lima\n").version(Settings(), "") == before


def test_a_text_of_a_megabyte_takes_seconds(tmp_path):
    text = "In Paris it was 21 degrees. " * 40_000
    proposer = tool_with(tmp_path, "Paris\n").open_proposer(Settings())
    started = time.process_time()
    assert len(proposer.proposals(Document.of(text)).calls) == 40_000
    assert time.process_time() - started < 5


def test_more_proposals_than_a_text_may_have_is_what_a_long_text_gives(tmp_path):
    text = "In Paris it was 21 degrees. " * 1000
    assert len(proposed(tool_with(tmp_path, "Paris\n"), text)) > MOST_PROPOSED_CALLS


DOCUMENT = """
openapi: 3.1.0
info: {title: Cities, version: '1'}
paths:
  /weather: {get: {operationId: weather, parameters: [{name: city, in: query, required: true, schema: {type: string}}],
    responses: {200: {description: ok}}}}
  /cities:
    get: {operationId: cities, responses: {200: {description: ok}}}
    post: {operationId: build, responses: {200: {description: ok}}}
"""


@contextmanager
def listing(folder: Path, answer, *, field: str = "", listed_by: str = "cities"):
    """A tool file whose server answers so to the call that lists its terms."""
    (folder / "cities.yaml").write_text(DOCUMENT)
    keys = f'field = "{field}"' if field else ""
    with served(Starlette(routes=[Route("/v1/cities", lambda _: answer)])) as address:
        table = {"command": [], "url": f"{address}/v1", "openapi": "cities.yaml"}
        tables = f'[proposals]\nterms = "terms.txt"\nlisted_by = "{listed_by}"\n{keys}'
        yield write_tool(folder, "Weather", "weather", server=table, tables=tables, schema=CITY)


def test_the_terms_that_a_server_lists_are_written_into_the_file(tmp_path):
    with listing(tmp_path, JSONResponse(["Paris", "Lima", "Paris"])) as path:
        assert write_listed_terms(path) == (tmp_path / "terms.txt", 2)
    assert (tmp_path / "terms.txt").read_text() == "Paris\nLima\n"


def test_a_field_of_the_answer_holds_the_terms(tmp_path):
    answer = JSONResponse({"cities": [{"name": "Paris", "land": "France"}, {"name": "Lima", "land": "Peru"}]})
    with listing(tmp_path, answer, field="name") as path:
        write_listed_terms(path)
    assert (tmp_path / "terms.txt").read_text() == "Paris\nLima\n"


@pytest.mark.parametrize(
    ("answer", "listed_by", "said"),
    [
        (
            JSONResponse({"cities": [{"name": "Paris"}]}),
            "cities",
            "expected terms of three letters or more from cities, found .*Paris.*Name the field that holds",
        ),
        (PlainTextResponse("nothing", 404), "cities", "called without arguments, found the error .*404"),
        (JSONResponse([]), "towns", "expected a tool 'towns' of the server, found weather, cities"),
        (JSONResponse([]), "weather", "found the error .*Name another tool in `listed_by`"),
        (JSONResponse([]), "build", "found that the server marks build as a writing one"),
    ],
)
def test_a_call_that_lists_no_terms_is_refused_with_the_remedy(tmp_path, answer, listed_by, said):
    with listing(tmp_path, answer, listed_by=listed_by) as path, pytest.raises(ToolError, match=said):
        write_listed_terms(path)


def test_a_server_that_is_busy_while_it_lists_is_away(tmp_path):
    with (
        listing(tmp_path, PlainTextResponse("busy", 503)) as path,
        pytest.raises(InfrastructureError, match="expected a list of terms from cities, found"),
    ):
        write_listed_terms(path)


def test_a_failed_list_leaves_the_terms_as_they_were(tmp_path):
    (tmp_path / "terms.txt").write_text("Paris\n")
    with listing(tmp_path, JSONResponse([])) as path, pytest.raises(ToolError):
        write_listed_terms(path)
    assert (tmp_path / "terms.txt").read_text() == "Paris\n"


@pytest.mark.parametrize(
    ("texts", "structured", "field", "terms"),
    [
        (["Paris\nNew\tYork"], None, "", ["Paris", "New York"]),
        (["Paris", "Lima"], None, "", ["Paris", "Lima"]),
        (['["Paris", ["Lima"]]'], None, "", ["Paris", "Lima"]),
        (['{"a": [{"id": "Lima"}]}'], None, "id", ["Lima"]),
        (["Paris"], {"result": ["Lima"]}, "", ["Lima"]),
        (["[" * 100_000], None, "", ["[" * 100_000]),
        (['"Paris"'], None, "", ['"Paris"']),
    ],
)
def test_terms_are_read_from_each_form_of_an_answer(texts, structured, field, terms):
    content = [TextContent(type="text", text=text) for text in texts]
    result = CallToolResult(content=content, structured_content=structured)
    assert list(terms_in(result, field)) == terms


def test_terms_in_lists_of_any_depth_are_read():
    deep: list[object] = ["Paris"]
    for _ in range(5000):
        deep = [deep]
    result = CallToolResult(content=[], structured_content=None)
    object.__setattr__(result, "structured_content", {"a": deep})
    assert list(terms_in(result, "")) == ["Paris"]
