from toolformer_ops.config import REPOSITORY
from toolformer_ops.storage import database
from toolformer_ops.storage.data_model import data_model

PAGE = REPOSITORY / "docs" / "data_model.md"


def test_the_page_on_tables_and_views_is_up_to_date(postgres_dsn: str) -> None:
    with database.connect_dsn(postgres_dsn, database.DSN_SETTING).connect() as connection:
        written = data_model(connection)
    assert PAGE.read_text(encoding="utf-8") == written, (
        f"{PAGE} is older than sql/: run `python -m toolformer_ops.storage.data_model > docs/data_model.md`"
    )
