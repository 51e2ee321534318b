"""The page in the Airflow UI: what a run is doing, what it found, whether that is good, and what changed.

    plugin.py       what Airflow loads: the application, its tabs and its entries in the navigation
    app.py          the FastAPI application: its routes, headers, assets, and what an error looks like
    rights.py       who asks, and which runs they may see: Airflow's own sign-in and rights
    reading.py      the reader's connections, the threads that queries run in, the cache of answers
    shown_runs.py   the run that is shown, or the reason why there is none
    pages.py        templates, and how numbers, texts and links are written
    overview.py, calls.py, call.py, checks.py, thresholds.py, changes.py, evaluation.py
                    one view each, with the template of its name
    current_work.py what a run does now, and how long it still takes
    call_files.py   the calls of a run as a file
    corpora.py      versions of corpora, kept calls by night, releases with their cards
    reviewing.py    calls of a release are judged one by one
    judgements.py   what reviewers said of them: precision, placebos, agreement

**How a view is added.** Write `run_page/NAME.py` with a `router`, and `templates/NAME.html.j2`; name the
module in `app.VIEWS`:

    router = APIRouter()

    @router.get("/name")
    async def show(request: Request, asked: AskedRunDep, tool: str = "") -> Response:
        def make(connection: Connection) -> Page:
            run = load_run(connection, asked)                       # 404 if this DAG has no such run
            # sql/queries/page.sql
            rows = fetch_all(connection, queries.page.name, run_id=run.run_id, tool=tool)
            return Page("name.html.j2", {"run": run, "rows": rows}, seconds=run.seconds_to_keep)

        return await answer(request, make)

The template extends `base.html.j2`. `make` runs in a thread of this room, on a connection of the reader whose
statements are limited in time; what it returns is rendered there and kept for `seconds`. What takes long is
counted beside the page (`shown_runs.numbers_of`, `Reader.counted`; a view gets the reader by `ReaderDep`). A
view without a run takes `VisitorDep` instead, and shows nothing of runs whose DAG is not in
`visitor.dag_ids`. A view that shows something to one visitor alone, or that writes, does not use `answer`'s
cache (`seconds=0`); a write asks for `WriterDep` too, which refuses requests from other sites.

Rules of the house: every route asks for one of these dependencies (a test holds that); no value is marked as
safe HTML; no inline script and no `style` attribute (the content security policy forbids both); all addresses
are relative, since Airflow may be below a path; a query with a row for each call reads by an index and has a
limit.
"""
