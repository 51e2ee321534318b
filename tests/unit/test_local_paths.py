"""What runs may name of this machine: not the passwords, by no spelling and through no link, wherever a path is taken."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tool_files import forget_tools, write_tool
from toolformer_ops.airflow_tasks.nights.schedules import load_schedule
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import CorpusError, UsageError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.language_model.models import model_identity
from toolformer_ops.language_model.models.loading import load_tokenizer
from toolformer_ops.language_model.models.publishing import publish_model
from toolformer_ops.runs.requests import require_annotation, require_finetuning, require_there
from toolformer_ops.stages.index_building import build_index
from toolformer_ops.storage.corpora.files import CorpusFile, OpenedFile, find_files
from toolformer_ops.storage.corpora.local_paths import DEMO_TEXTS, local_path, open_local
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits
from toolformer_ops.tools.registry import get_tool

PASSWORD = "hunter2-of-the-owner"


@pytest.fixture
def settings():
    """With a state folder that holds a password, as `up` leaves it."""
    state = load_settings().state_dir
    (state / "models" / "tiny").mkdir(parents=True)
    (state / "secrets.json").write_text(json.dumps({"postgres_owner": PASSWORD}))
    return load_settings()


@pytest.fixture
def link(tmp_path, settings):
    """A folder of a user, with a link to the password."""
    folder = tmp_path / "posts"
    folder.mkdir()
    (folder / "posts.jsonl").write_text('{"text": "One."}\n')
    (folder / "more.jsonl").symlink_to(settings.state_dir / "secrets.json")
    return folder


SECRET_PLACES = {
    "where passwords are kept": (
        "{state}/secrets.json", "file://{state}/secrets.json", "{state}/models/../secrets.json", "{state}",
        "{folder}/more.jsonl",
    ),
    "hidden": ("{folder}/.env", "{folder}/.ssh/key.jsonl"),
    "system": (
        "/etc/passwd", "/proc/self/environ", "/dev/stdin", "/var/run/secrets/kubernetes.io", "/sys", "/",
        "~root/../etc/shadow",
    ),
}  # fmt: skip


@pytest.mark.parametrize("found", SECRET_PLACES)
def test_by_default_runs_read_neither_the_state_folder_nor_the_system_nor_hidden_places(
    settings, link, found
):
    for place in SECRET_PLACES[found]:
        address = place.format(state=settings.state_dir, folder=link)
        with pytest.raises(UsageError, match=f"corpus: expected files that may be read, .*{found}") as caught:
            local_path(settings, address, "corpus")
        assert PASSWORD not in str(caught.value)


def test_by_default_runs_read_all_else(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for address in ("posts.jsonl", f"file://{tmp_path}/posts.jsonl", f"{tmp_path}/x/../posts.jsonl"):
        assert local_path(settings, address, "corpus") == tmp_path / "posts.jsonl"
    state = settings.state_dir
    for path in (state / "models" / "tiny", state / "demo" / "wikipedia.jsonl", Path("/data/x")):
        assert local_path(settings, str(path), "model") == path
    (tmp_path / "..data").mkdir()  # as Kubernetes makes it in a volume
    (tmp_path / "..data" / "a.jsonl").touch()
    (tmp_path / "a.jsonl").symlink_to("..data/a.jsonl")
    assert local_path(settings, str(tmp_path / "a.jsonl"), "corpus") == tmp_path / "..data" / "a.jsonl"


@pytest.mark.parametrize(
    "place", ["/usr/share/x", "/opt/x", "/boot/x", "/root/x", "/lib/x", "/bin/x", "/sbin/x"]
)
def test_by_default_runs_read_no_folder_of_programs(settings, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="is in a folder of the system"):
        local_path(settings, place, "corpus")


def test_by_default_runs_read_below_a_home_among_programs(settings, monkeypatch):
    monkeypatch.setenv("HOME", "/opt/ann")
    assert local_path(settings, "/opt/ann/posts.jsonl", "corpus") == Path("/opt/ann/posts.jsonl")


def test_by_default_runs_read_nothing_hidden_of_a_home(settings, monkeypatch):
    monkeypatch.setenv("HOME", "/opt/ann")
    with pytest.raises(UsageError, match="is hidden"):
        local_path(settings, "/opt/ann/.ssh/id_rsa", "corpus")


def test_by_default_runs_read_below_a_current_folder_among_programs(settings, monkeypatch):
    monkeypatch.setattr(Path, "cwd", lambda: Path("/opt/work"))
    assert local_path(settings, "/opt/work/posts.jsonl", "corpus") == Path("/opt/work/posts.jsonl")


def test_a_current_folder_in_the_state_folder_opens_nothing_of_it(settings, monkeypatch):
    (settings.state_dir / "airflow").mkdir()
    monkeypatch.chdir(settings.state_dir / "airflow")
    with pytest.raises(UsageError, match="where passwords are kept"):
        local_path(settings, "airflow.cfg", "corpus")


def test_a_current_folder_of_the_system_opens_nothing_of_it(settings, monkeypatch):
    monkeypatch.setattr(Path, "cwd", lambda: Path("/var/lib/service"))
    with pytest.raises(UsageError, match="is in a folder of the system"):
        local_path(settings, "/var/lib/service/x", "corpus")


def test_the_state_folder_of_another_deployment_is_not_read(settings, tmp_path):
    other = tmp_path / "other-deployment"
    (other / "airflow").mkdir(parents=True)
    (other / "secrets.json").write_text("{}")
    for place in (other, other / "secrets.json", other / "airflow" / "airflow.cfg"):
        with pytest.raises(UsageError, match="where another deployment keeps its passwords"):
            local_path(settings, str(place), "corpus")


def test_the_models_of_another_deployment_may_be_named(settings, tmp_path):
    other = tmp_path / "other-deployment"
    other.mkdir()
    (other / "secrets.json").write_text("{}")
    assert local_path(settings, str(other / "models" / "tiny"), "model") == other / "models" / "tiny"


def test_a_model_in_the_cache_of_the_hub_is_read_by_its_path(settings, tiny_model_dir, tmp_path, monkeypatch):
    """As huggingface_hub lays it out: a snapshot of links into the folder of its blobs."""
    cache = tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    snapshot = cache / "models--org--tiny" / "snapshots" / ("0" * 40)
    blobs = cache / "models--org--tiny" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in tiny_model_dir.glob("[!.]*"):
        shutil.copy(file, blobs / f"blob-of-{file.name}")
        (snapshot / file.name).symlink_to(f"../../blobs/blob-of-{file.name}")
    assert model_identity(str(snapshot), settings=settings)


def test_the_token_of_the_hub_is_hidden(settings, tmp_path, monkeypatch):
    cache = tmp_path / ".cache" / "huggingface"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache / "hub"))
    with pytest.raises(UsageError, match="is hidden"):
        local_path(settings, str(cache / "token"), "corpus")


def test_with_roots_runs_read_only_below_them_or_what_the_deployment_names(settings, tmp_path):
    state = settings.state_dir
    roots = f"/corpora:{tmp_path}/a:/var/data:{state}"
    settings = settings.model_copy(update={"corpus_roots": roots, "default_model": "/var/models/base"})
    demo = str(DEMO_TEXTS / "sums_in_prose.jsonl")
    for allowed in ("/corpora/x.jsonl", f"{tmp_path}/a", "/var/data/x", "/var/models/base", demo):
        assert str(local_path(settings, allowed, "corpus")) == allowed
    for other in ("/corpora2/x", f"{tmp_path}/b", "/", "/var/x", "/corpora/.x", f"{state}/secrets.json"):
        with pytest.raises(UsageError, match="TOOLFORMER_CORPUS_ROOTS allows"):
            local_path(settings, other, "corpus")


def test_what_is_no_address_of_files_is_one_sentence(settings):
    for address, said in (
        ("http://host/posts.jsonl", "path, or an address with file:// or s3://"),
        ("/" + "a/" * 2500, "File name too long"),
        ("~nobody-of-that-name/posts", "it leads nowhere"),
        (
            "/posts\x1b[31m\nERROR all is well\x00",
            r"without control characters, found '/posts\\x1b\[31m\\nERROR",
        ),
    ):
        for take in (local_path, require_there):
            with pytest.raises(CorpusError, match=said) as caught:
                take(settings, address, "corpus")
            assert len(str(caught.value)) < 500
            assert str(caught.value).isprintable()


MATH = {"evaluation_suites": ["math"]}


def _run(**choices: str) -> dict[str, object]:
    return {"corpus": "s3://bucket/x", "model": "hub/m@1", "evaluation_suites": [], **choices}


def content_sha256(settings: Settings, file: CorpusFile) -> str:
    with OpenedFile(file, UnpackingLimits()) as opened:
        return opened.sha256()


TAKERS: dict[str, Callable[[Settings, str], object]] = {
    "corpus": lambda settings, path: [
        content_sha256(settings, file) for file in find_files(settings, f"file://{path}")
    ],
    "form: corpus": lambda settings, path: require_annotation(settings, _run(corpus=path)),
    "form: model": lambda settings, path: require_annotation(settings, _run(model=path)),
    "form: evaluation data": lambda settings, path: require_annotation(
        settings, _run(evaluation_data=path) | MATH
    ),
    "form of a finetuning: evaluation data": lambda settings, path: require_finetuning(
        settings, {"release": "0" * 16, "evaluation_data": path} | MATH
    ),
    "form: Wikipedia": lambda settings, path: require_there(settings, path, "source"),
    "model": lambda settings, path: model_identity(path, settings=settings),
    "tokenizer": lambda settings, path: load_tokenizer(path, None, settings),
    "model to publish": publish_model,
    "evaluation data": lambda settings, path: DataFolder(settings, path).find(["gsm8k"], ["*.jsonl"]),
    "Wikipedia": build_index,
}


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_a_path_to_a_secret_is_refused_wherever_it_is_taken(settings, link, take):
    for path in (settings.state_dir / "secrets.json", link / "more.jsonl"):
        with pytest.raises(UsageError, match="which is where passwords are kept") as caught:
            take(settings, str(path))
        assert PASSWORD not in str(caught.value)


def test_a_relative_path_that_is_refused_is_named_with_what_it_means_here(settings, monkeypatch):
    monkeypatch.chdir(settings.state_dir)
    with pytest.raises(UsageError) as caught:
        local_path(settings, "data/x.jsonl", "corpus")
    meaning = f"data/x.jsonl (a relative path: {settings.state_dir.resolve()}/data/x.jsonl for the process"
    assert meaning in str(caught.value)


def test_a_relative_path_without_a_file_is_named_with_what_it_means_here(settings, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=f"a relative path: {tmp_path}/posts.jsonl for the process that looks for it"
    ):
        require_there(settings, "posts.jsonl", "corpus")


def test_a_whole_path_is_named_as_it_is(settings):
    with pytest.raises(UsageError, match="expected files at /nowhere, found nothing"):
        require_there(settings, "/nowhere", "corpus")


def test_of_links_in_a_model_only_those_to_its_own_files_are_followed(settings, tiny_model_dir, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model_dir.glob("[!.]*"):
        (model / file.name).symlink_to(file)
    assert model_identity(str(model), settings=settings)
    (model / ".content_hashes.json").unlink()
    for name in ("vocab.json", ".content_hashes.json"):
        (model / name).symlink_to(settings.state_dir / "secrets.json")
        for take in (TAKERS["model"], TAKERS["tokenizer"], TAKERS["model to publish"]):
            with pytest.raises(
                UsageError, match=f"{name}: expected a file of the model, found a link to a file"
            ):
                take(settings, str(model))
        (model / name).unlink()


def test_neither_tool_files_nor_schedules_are_read_through_a_link_to_a_secret(settings):
    path = write_tool(settings.state_dir / "tools", "Echo", "echo")  # the default: in the state folder
    forget_tools()
    assert "Echo" in get_tool("Echo").prompt
    for change in (
        lambda: path.write_text(path.read_text().replace('"echo.txt"', '"../secrets.json"')),
        lambda: (path.unlink(), path.symlink_to("../secrets.json")),
    ):
        change()
        forget_tools()
        with pytest.raises(UsageError, match="where passwords are kept"):
            get_tool("Echo")
    forget_tools()
    schedules = settings.state_dir / "schedules"
    schedules.mkdir()
    (schedules / "posts.toml").symlink_to(settings.state_dir / "secrets.json")
    with pytest.raises(UsageError, match="where passwords are kept"):
        load_schedule(schedules / "posts.toml")


def test_files_of_a_folder_that_lead_out_of_it_are_refused_with_a_reason(settings, link, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.jsonl").touch()
    (link / "elsewhere").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    for name, target in (("inside", "posts.jsonl"), ("loop", "loop.jsonl"), ("nothing", "not-there")):
        (link / f"{name}.jsonl").symlink_to(target)
    os.mkfifo(link / "pipe.jsonl")
    files = find_files(settings, f"file://{link}")
    assert {Path(file.uri).name: file.refusal and file.refusal[0] for file in files} == {
        "posts.jsonl": None,
        "inside.jsonl": None,
        "more.jsonl": "outside_corpus",
        "elsewhere": "outside_corpus",
        "loop.jsonl": "not_a_file",
        "nothing.jsonl": "not_a_file",
        "pipe.jsonl": "not_a_file",
    }
    assert PASSWORD not in "".join(file.open().read().decode() for file in files)
    # A folder above the state folder gives nothing of it.
    above = find_files(settings, f"file://{settings.state_dir.parent}")
    refusals = {Path(file.uri).name: file.refusal for file in above}
    assert refusals["secrets.json"] == ("outside_corpus", "it is where passwords are kept")


def test_a_file_that_becomes_a_link_just_before_it_is_opened_is_not_opened(settings, tmp_path):
    secret = settings.state_dir / "posts.jsonl"
    secret.write_text(PASSWORD)
    for number, swap in enumerate(
        (
            lambda folder: ((folder / secret.name).unlink(), (folder / secret.name).symlink_to(secret)),
            lambda folder: (folder.rename(tmp_path / "before"), folder.symlink_to(settings.state_dir)),
        )
    ):
        (folder := tmp_path / str(number)).mkdir()
        (folder / secret.name).write_text('{"text": "One."}\n')
        [file] = find_files(settings, f"file://{folder}")
        assert file.open().read()
        swap(folder)
        with pytest.raises(CorpusError, match="expected to read"):
            content_sha256(settings, file)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no file"):
        open_local(tmp_path / "pipe")
