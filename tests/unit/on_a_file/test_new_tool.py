"""The first version of a tool file: from what a server says and from examples; no file if one is wrong."""

import shlex
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.hostile_queries import sqlite_shop
from tests.tool_files import SERVERS, forget_tools
from toolformer_ops.cli.tools import app
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import ConfigurationError, ToolError, ToolformerError, UsageError
from toolformer_ops.on_a_file.new_tool.examples import ExampleCall
from toolformer_ops.on_a_file.new_tool.first_version import (
    NewTool,
    database_part,
    run_examples,
    write_database_tool,
    write_function_tool,
)
from toolformer_ops.on_a_file.new_tool.server_tools import ServerToolChoice, write_server_tools
from toolformer_ops.records import Document
from toolformer_ops.tools.files.kinds import refresh_tool
from toolformer_ops.tools.files.tool_file import read_table
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.tools.servers.served_tool import ServedTool
from toolformer_ops.tools.servers.server_file import ServerPart

FAULTY = [sys.executable, str(SERVERS / "faulty.py")]


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path / "tools"))
    forget_tools()
    yield load_settings()
    monkeypatch.undo()
    forget_tools()


def made(
    settings: Settings, tool: str, examples: str, *, name: str = "Weather", allow_writes: bool = False
) -> NewTool:
    path = settings.tools_folder.parent / "examples.txt"
    path.write_text(examples)
    choice = ServerToolChoice(tool, name, allow_writes=allow_writes)
    [new] = write_server_tools(settings, ServerPart(command=tuple(FAULTY)), [choice], path)
    return new


def terms_in(folder: Path, text: str) -> str:
    """The path of a file of terms."""
    path = folder / "some.txt"
    path.write_text(text)
    return str(path)


def with_terms(settings: Settings, **terms: str) -> NewTool:
    """A tool that says a text again, and proposes calls with terms."""
    path = settings.tools_folder.parent / "examples.txt"
    path.write_text("It is [Echo(Paris)] Paris.\n")
    choice = ServerToolChoice("echo", "Echo", **terms)
    [new] = write_server_tools(settings, ServerPart(command=tuple(FAULTY)), [choice], path)
    return new


def test_a_new_tool_has_a_file_with_a_prompt_whose_examples_run(settings):
    new = made(
        settings,
        "weather",
        'On 1 January it was [Weather(city: "Paris", date: "2023-01-01") -> mild] mild in [old] Paris.\n\n'
        'Rome, [Weather(date: "2023-05-02", city: "Rome", unit: "C")] 2 May.\n',
    )
    prompt = new.prompt_path.read_text()
    assert (
        'writing "[Weather(city: ..., date: ..., unit: ..., key: ...)]" where "city" is the city, ' in prompt
    )
    assert prompt.endswith(
        "Input: On 1 January it was mild in [old] Paris.\n"
        'Output: On 1 January it was [Weather(city: "Paris", date: "2023-01-01")] mild in [old] Paris.\n\n'
        "Input: Rome, 2 May.\n"
        'Output: Rome, [Weather(date: "2023-05-02", city: "Rome", unit: "C")] 2 May.\n\n'
        "Input: {text}\nOutput:\n"
    )
    assert [result for _, result in new.answers] == ["Paris 2023-01-01", "2023-05-02 Rome C"]
    assert get_tool("Weather").spec.keep_threshold == 0.5


def test_an_example_that_could_not_be_sent_is_named_without_leaving_a_file(settings):
    for examples, said in (
        ("", r"expected a text with a call \[Weather\(city: \.\.\."),
        ("It is mild.", r"line 1: expected a call .* found none"),
        ('It is [Weather("Paris")] mild.', r"line 1: .*arguments_do_not_parse"),
        ('It is [Weather(city: "Paris", date: "1 May")] mild.', "argument_not_of_the_schema"),
    ):
        with pytest.raises(UsageError, match=said):
            made(settings, "weather", examples)
        assert list(settings.tools_folder.iterdir()) == []


def test_a_document_without_the_operation_leaves_no_file(settings, tmp_path):
    document = tmp_path / "service.json"
    document.write_text('{"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "paths": {}}')
    server = ServerPart(url="http://127.0.0.1:1", openapi=str(document))
    with pytest.raises(ToolError, match=r"expected a tool 'capital' of the server, found none\."):
        write_server_tools(
            settings, server, [ServerToolChoice("capital", "Capital")], tmp_path / "examples.txt"
        )
    assert list(settings.tools_folder.iterdir()) == []


def test_a_tool_that_writes_needs_leave_without_overwriting_a_file(settings):
    with pytest.raises(ToolError, match=r"marks write as a writing one.*--allow-writes"):
        made(settings, "write", "It is [Weather(a)] a.")
    new = made(settings, "write", "It is [Weather(a)] a.", allow_writes=True)
    assert new.tool.file.allow_writes
    with pytest.raises(UsageError, match=r"weather\.toml and .*weather\.txt.*--replace, or choose another"):
        made(settings, "echo", "It is [Weather(a)] a.", name="weather")
    new.path.unlink()
    forget_tools()
    with pytest.raises(UsageError, match=r"weather\.txt\. Write them anew with --replace"):
        made(settings, "echo", "It is [Weather(a)] a.")


def test_the_name_of_a_tool_that_is_no_file_cannot_be_taken(settings):
    with pytest.raises(UsageError, match=r"found calculator, which is a tool already\. Choose another"):
        made(settings, "echo", "It is [calculator(a)] a.", name="calculator")


def test_a_new_version_is_refused_until_it_is_recorded(settings):
    new = made(settings, "echo", "It is [Echo(a)] a.", name="Echo")
    text = new.path.read_text()
    changed = text.replace("[server]\n", '[server]\nenvironment = {FAULTY = "version"}\n')
    new.path.write_text(changed)
    calls = [call for call, _ in new.answers]
    with pytest.raises(ToolError, match="found another version"):
        run_examples(settings, ServedTool(new.path), calls)
    before, now = refresh_tool(new.path)
    assert before is not None
    assert (before.version, now.version) == ("1.0", "2.0")
    assert new.path.read_text() == changed.replace('version = "1.0"', 'version = "2.0"')
    assert run_examples(settings, ServedTool(new.path), calls) == new.answers


STOCKS = """It has [Echo({'item': 'kettle', 'stock': 667})] 667 kettles.
It has [Echo({'item': 'cup', 'stock': 12})] 12 cups, and on 1 May it was [Weather(city: "Paris", date: "2023-05-01")] mild.
"""
"""What Echo is asked is what it answers: texts as Python's repr writes them."""


def test_the_command_line_makes_two_tools_of_one_server(settings, tmp_path):
    (tmp_path / "examples.txt").write_text(STOCKS)
    words = ["new-tool", "--mcp", shlex.join(FAULTY), "--tool", "echo", "--tool", "weather"]
    done = CliRunner().invoke(app, [*words, "--fixed", "key=k", "--examples", str(tmp_path / "examples.txt")])
    assert "the tool has no argument key" in str(done.exception)  # of echo
    assert list(settings.tools_folder.iterdir()) == []
    done = CliRunner().invoke(app, [*words, "--examples", str(tmp_path / "examples.txt")])
    assert done.exit_code == 0, done.output
    assert "[Echo({'item': 'kettle', 'stock': 667}) -> 667]" in done.output
    assert '[Weather(city: "Paris", date: "2023-05-01") -> Paris 2023-05-01]' in done.output
    assert (settings.tools_folder / "echo.txt").read_text().count("Weather(") == 0
    assert "stock" in read_table(settings.tools_folder / "echo.toml")["result"]


def test_a_fixed_argument_is_in_the_file_but_not_in_a_call(settings, tmp_path):
    (tmp_path / "examples.txt").write_text('It was [Weather(city: "Paris", date: "2023-05-01")] mild.\n')
    words = [
        "new-tool",
        "--mcp",
        shlex.join(FAULTY),
        "--tool",
        "weather",
        "--fixed",
        "key=k",
        "--fixed",
        'unit="C"',
    ]
    done = CliRunner().invoke(app, [*words, "--examples", str(tmp_path / "examples.txt")])
    assert done.exit_code == 0, done.output
    assert read_table(settings.tools_folder / "weather.toml")["fixed"] == {"key": "k", "unit": "C"}
    assert "[Weather(city: ..., date: ...)]" in (settings.tools_folder / "weather.txt").read_text()
    assert "-> Paris 2023-05-01 k C]" in done.output


SHOP_EXAMPLES = "It has [Shop(SELECT stock FROM products WHERE name = 'kettle')] 667 kettles.\n"


def test_the_command_line_makes_a_tool_of_a_database(settings, tmp_path, monkeypatch):
    sqlite_shop(tmp_path)
    (tmp_path / "examples.txt").write_text(SHOP_EXAMPLES)
    monkeypatch.chdir(tmp_path)
    words = ["new-tool", "--sql", "sqlite:///shop.db", "--examples", "examples.txt", "--table", "products"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "[Shop(SELECT stock FROM products WHERE name = 'kettle') -> 667]" in done.output
    prompt = (settings.tools_folder / "shop.txt").read_text()
    assert '{rows} You can call the API by writing "[Shop(query)]"' in prompt
    columns = "products(name text primary key, stock integer, price numeric(10, 2))"
    assert f"one SELECT of SQLite on the tables {columns}. Here are" in prompt
    assert "A row of products is (kettle, 667, 24.5)." in get_tool("Shop").prompt
    assert f'url = "sqlite:///{tmp_path / "shop.db"}"' in (settings.tools_folder / "shop.toml").read_text()


def test_tables_that_the_prompt_has_no_room_for_are_a_warning(settings, tmp_path):
    connection = sqlite3.connect(sqlite_shop(tmp_path))
    for number in range(20):
        connection.execute(
            f"create table sales_of_{number} (article_number text, pieces_sold integer, day text)"
        )
    connection.close()
    (tmp_path / "examples.txt").write_text(SHOP_EXAMPLES)
    for tables, warned in (((), True), (("products",), False)):
        database = database_part(f"sqlite:///{tmp_path / 'shop.db'}", "", tables, ())
        new = write_database_tool(settings, database, "Shop", tmp_path / "examples.txt")
        assert any("--table" in warning for warning in new.warnings) == warned
        new.path.unlink()
        new.prompt_path.unlink()
        forget_tools()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://reader:secret@db/shop", "expected no password in `url`, found one"),
        ("postgresql://reader:{PASSWORD}@db/shop", "holds PASSWORD, which `secrets` does not name"),
        ("mysql://db/shop", "begins with sqlite:/// or postgresql://, found 'mysql'"),
    ],
)
def test_an_address_of_a_database_that_may_not_be_written_is_refused(url, said):
    with pytest.raises(ConfigurationError, match=said) as refused:
        database_part(url, "", (), ())
    assert ":secret@" not in str(refused.value)


def test_a_database_that_is_not_there_leaves_no_file(settings, tmp_path):
    database = database_part(f"sqlite:///{tmp_path / 'none.db'}", "", (), ())
    with pytest.raises(ToolError, match=r"expected a file of SQLite at .*none\.db, found none"):
        write_database_tool(settings, database, "Shop", tmp_path / "examples.txt")
    assert list(settings.tools_folder.iterdir()) == []


def test_an_example_that_does_not_fit_names_the_arguments_in_words(settings):
    with pytest.raises(
        UsageError, match="Its arguments: city \\(text in double quotes\\), date \\(text in double quotes"
    ) as refused:
        made(settings, "weather", 'It is [Weather(city: "Paris", date: "1 May")] mild.')
    assert '{"' not in str(refused.value)


HEIGHT = '''
def height(mountain: str) -> int:
    """How high a mountain is, in metres. Knows a few."""
    return {"Eiger": 3967, "Mont Blanc": 4806}[mountain]
'''


def test_the_command_line_makes_a_tool_of_a_function(settings, tmp_path):
    (tmp_path / "mountains.py").write_text(HEIGHT)
    (tmp_path / "examples.txt").write_text(
        "The Eiger is [Height(Eiger)] 3967 metres high.\nIt is [Height(Mont Blanc)] high.\n"
    )
    words = ["new-tool", "--python", f"{tmp_path / 'mountains.py'}:height"]
    done = CliRunner().invoke(app, [*words, "--examples", str(tmp_path / "examples.txt")])
    assert done.exit_code == 0, done.output
    assert "[Height(Eiger) -> 3967]\n[Height(Mont Blanc) -> 4806]" in done.output
    assert get_tool("Height").spec.purpose == "How high a mountain is, in metres."
    assert (settings.tools_folder / "height.py").read_text() == HEIGHT
    prompt = (settings.tools_folder / "height.txt").read_text()
    assert (
        'How high a mountain is, in metres. Knows a few. You can call the API by writing "[Height(mountain)]"'
        in prompt
    )


def test_a_function_named_propose_is_what_proposes(settings, tmp_path):
    (tmp_path / "mountains.py").write_text(HEIGHT + "\ndef propose(text):\n    yield 0, 'Eiger'\n")
    (tmp_path / "examples.txt").write_text("The Eiger is [Height(Eiger)] 3967 metres high.\n")
    write_function_tool(settings, tmp_path / "mountains.py", "height", "Height", tmp_path / "examples.txt")
    assert get_tool("Height").can_propose


def test_a_file_without_the_function_leaves_no_file(settings, tmp_path):
    (tmp_path / "mountains.py").write_text(HEIGHT)
    with pytest.raises(ToolError, match=r"expected a function depth in .*, found height"):
        write_function_tool(settings, tmp_path / "mountains.py", "depth", "Depth", tmp_path / "examples.txt")
    assert list(settings.tools_folder.iterdir()) == []


def test_the_command_line_shows_the_results_of_the_examples(settings):
    examples = settings.tools_folder.parent / "examples.txt"
    examples.write_text("It is [Echo(a: b)] a.\n")
    words = ["new-tool", "--mcp", shlex.join(FAULTY), "--tool", "echo", "--examples", str(examples)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "[Echo(a: b) -> a: b]" in done.output
    assert "does not say whether the tool only reads" in done.output
    assert "to try it: toolformer-ops preview TEXTS --tools Echo" in done.output


@pytest.fixture
def people(tmp_path):
    """A database with names that a query has to quote, a generated column, keys, and a table without rows."""
    path = tmp_path / "people.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        create table "order" (id integer primary key, "unit price" real, twice real as (2 * "unit price"));
        create table visits (order_id integer references "order"(id), day text);
        insert into "order" (id, "unit price") values (1, 12.5);
        """
    )
    connection.close()
    return path


def of_database(settings: Settings, path: Path, examples: str, *, replaces: bool = False) -> NewTool:
    file = path.with_name("examples.txt")
    file.write_text(examples)
    database = database_part(f"sqlite:///{path}", "", (), ())
    return write_database_tool(settings, database, "Shop", file, replaces=replaces)


PRICE = 'It costs [Shop(SELECT "unit price" FROM "order")] 12.50 euros.'


def test_a_prompt_has_names_as_a_query_writes_them(settings, people):
    of_database(settings, people, PRICE)
    assert (
        '"order"(id integer primary key, "unit price" real, twice real), '
        'visits(order_id integer references "order"(id), day text). Here are'
    ) in get_tool("Shop").prompt


def test_no_row_of_a_database_is_sent_to_an_endpoint(settings, people):
    new = of_database(settings, people, PRICE)
    assert "A row of order is (1, 12.5, 25). You can" in new.tool.prompt
    assert "piece of text. You can" in new.tool.prompt_to_send
    assert any("no row" in warning for warning in new.warnings)


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        (
            'It costs [Shop(SELECT prise FROM "order")] 12.50 euros.',
            'line 1, [Shop(SELECT prise FROM "order")] has no result, the database does not understand the '
            "query: no such column: prise",
        ),
        (
            f'{PRICE}\n\nIt costs [Shop(SELECT "unit price" FROM "order")] 99 euros.',
            'line 3, [Shop(SELECT "unit price" FROM "order")] has the result \'12.5\', and the text says '
            "'99 euros.'",
        ),
        (
            'It costs [Shop(SELECT "unit price" FROM "order") -> 99] 12.50 euros.',
            "and the text says '99'",
        ),
        (PRICE.replace("Shop", "Workshop"), "found calls of Workshop. Write Shop there"),
        ("It is [Shop(SELECT tags[1] FROM visits)] red.", "no square bracket and no arrow (->)"),
        ("It is [Shop(SELECT day->>'a' FROM visits)] red.", "no square bracket and no arrow (->)"),
        (f"{PRICE} [Shop(SELECT day FROM [order])] x", "no square bracket and no arrow (->)"),
    ],
)
def test_an_example_that_teaches_a_wrong_call_leaves_no_file(settings, people, examples, said):
    with pytest.raises(UsageError) as refused:
        of_database(settings, people, examples)
    assert said in str(refused.value)
    assert list(settings.tools_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("result", "following"),
    [
        ("1312", "1,312 cups"),
        ("24.5", "24.50 euros"),
        ("24.5", "24,50 Euro"),
        ("Paris", "the city of PARIS"),
        ("kettle, 667", "667 kettles"),
    ],
)
def test_a_result_is_said_however_its_text_writes_it(result, following):
    assert ExampleCall(1, "", "", following).is_said(result)


def test_a_part_of_a_number_is_not_what_a_text_says():
    assert not ExampleCall(1, "", "", "125 cups in 2012").is_said("12")


def test_a_database_without_a_table_is_refused(settings, tmp_path):
    (tmp_path / "empty.db").touch()
    with pytest.raises(ToolError, match="expected a table that a query may read, found none in empty"):
        of_database(settings, tmp_path / "empty.db", PRICE)
    assert list(settings.tools_folder.iterdir()) == []


def test_a_tool_is_replaced_on_request(settings, people):
    new = of_database(settings, people, PRICE)
    new.path.write_text("no TOML")
    again = of_database(settings, people, PRICE.replace("costs", "is"), replaces=True)
    assert "It is 12.50 euros." in again.tool.prompt


def test_a_tool_that_cannot_be_replaced_stays(settings, people):
    new = of_database(settings, people, PRICE)
    before = new.path.read_text(), new.prompt_path.read_text()
    with pytest.raises(UsageError, match="Nothing was written"):
        of_database(settings, people, PRICE.replace("12.50", "99"), replaces=True)
    assert (new.path.read_text(), new.prompt_path.read_text()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sql", "sqlite:///people.db", "--name", "Work-shop"], "such as --name Workshop"),
        (["--sql", "sqlite:///2021-people.db"], "found '2021People'. Give the tool a name"),
        (["--sql", "sqlite:///магазин.db"], "such as --name Shop"),
        (["--sql", "people.db"], "found people.db. A file of SQLite is sqlite:///people.db"),
        (["--sql", "sqlite://people.db"], "Write sqlite:///people.db"),
        (["--sql", "sqlite:///people.db", "--examples", "none.txt"], "at none.txt, found: no such file"),
        (["--python", "none.py:f"], "expected a file of Python at none.py, found: no such file"),
    ],
)
def test_a_wrong_option_is_told_with_its_right_form(settings, people, monkeypatch, words, said):
    monkeypatch.chdir(people.parent)
    Path("examples.txt").write_text(PRICE)
    for other in ("2021-people.db", "магазин.db"):
        shutil.copyfile("people.db", other)
    done = CliRunner().invoke(app, ["new-tool", "--examples", "examples.txt", *words])
    assert isinstance(done.exception, ToolformerError)
    assert said in str(done.exception)
    assert "Errno" not in str(done.exception)


def test_tables_of_the_examples_are_in_the_prompt_of_a_database_with_many(settings, people):
    connection = sqlite3.connect(people)
    for number in range(100):
        connection.execute(f"create table a_table_with_a_long_name_{number} (first_column text)")
    connection.close()
    new = of_database(settings, people, PRICE)
    assert '"order"(id integer' in new.tool.prompt
    assert any("and 82 more it does not" in warning for warning in new.warnings)


def test_a_file_of_terms_is_copied_beside_the_new_tool(settings, tmp_path):
    new = with_terms(settings, terms=terms_in(tmp_path, "Paris\n"))
    assert new.path.with_suffix(".terms").read_text() == "Paris\n"


def test_a_new_tool_with_terms_proposes_calls(settings, tmp_path):
    new = with_terms(settings, terms=terms_in(tmp_path, "Paris\n"))
    proposals = new.tool.open_proposer(settings).proposals(Document.of("Paris has 2 airports."))
    assert [call.input for call in proposals.calls] == ["Paris"]


def test_a_new_tool_says_how_many_terms_it_has(settings, tmp_path):
    new = with_terms(settings, terms=terms_in(tmp_path, "Paris\nLima\nUK\n"))
    assert "calls are proposed with 2 terms." in new.warnings


def test_terms_that_cannot_be_used_write_nothing(settings, tmp_path):
    with pytest.raises(ToolError, match="expected a term of at least three letters"):
        with_terms(settings, terms=terms_in(tmp_path, "UK\n"))
    assert list(settings.tools_folder.iterdir()) == []


def test_a_tool_of_the_server_may_list_the_terms(settings):
    new = with_terms(settings, listed_by="towns")
    assert new.path.with_suffix(".terms").read_text() == "Paris\nLima\n"


def test_a_field_of_what_lists_the_terms_is_in_the_file(settings):
    new = with_terms(settings, listed_by="places:town")
    assert read_table(new.path)["proposals"] == {
        "terms": "echo.terms",
        "listed_by": "places",
        "field": "town",
    }


def test_refresh_tool_writes_the_terms_anew(settings):
    new = with_terms(settings, listed_by="towns")
    new.path.with_suffix(".terms").write_text("Rome\n")
    ran = CliRunner().invoke(app, ["refresh-tool", str(new.path)])
    assert ran.stdout.splitlines()[-1] == f"{new.path.with_suffix('.terms')}: 2 terms"


@pytest.mark.parametrize("options", [["--python", "a.py:a"], ["--mcp", "x"], ["--sql", "sqlite:///shop.db"]])
def test_terms_without_one_tool_of_a_server_are_refused(settings, options):
    ran = CliRunner().invoke(app, ["new-tool", *options, "--terms", "terms.txt"])
    assert isinstance(ran.exception, UsageError)
    assert "with one tool of a server" in str(ran.exception)
