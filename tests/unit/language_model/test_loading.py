"""Which model is loaded, under what name, and what is refused."""

import errno
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError

from tests.tiny_models import save_tiny
from tests.unit.language_model.conftest import TEXT, TextToSample, calculator, find_all, sample_calls, score_calls
from toolformer_ops.config import load_settings
from toolformer_ops.errors import (
    ConfigurationError,
    InfrastructureError,
    ModelError,
    ToolError,
    exit_code,
)
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.models import loading, model_identity
from toolformer_ops.language_model.models.identity import HASH_CACHE, hub_model_missing
from toolformer_ops.language_model.models.loading import (
    answer_on_first_device,
    load_tokenizer,
    load_weights,
    weight_bytes,
)
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.tools.sequence_to_sequence import load_checkpoint

PLACES = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}
"""Where accelerate puts the parts of a tiny model."""
COMMIT = "93efa2f097d58c2a74874c7e644dbc9b0cee75a2"


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def test_a_folder_is_named_by_its_content(folder: Path, tmp_path: Path) -> None:
    identity = model_identity(str(folder))
    name, _, content = identity.partition("@")
    assert (name, len(content)) == ("model", 16)
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "model", ignore=shutil.ignore_patterns(".*"))
    assert model_identity(str(copy)) == identity
    assert LanguageModel.load(str(folder)).identity == identity


def _flip_a_byte(file: Path) -> None:
    """Change a byte and set the file's time back, as a copy that keeps times does."""
    time.sleep(0.05)  # more than the file system's clock resolves
    status, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _append(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b" ")


def _rewrite(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        (_append("config.json"), True),
        (_append("tokenizer.json"), True),
        (_append("model.safetensors"), True),
        (lambda folder: _flip_a_byte(folder / "model.safetensors"), True),  # with the same size and time
        (_rewrite("README.md", b"notes"), False),
        (_rewrite(HASH_CACHE, b"[1, 2"), False),  # a damaged file of hashes is made anew
    ],
)
def test_the_name_changes_with_weights_configuration_and_tokenizer_alone(
    folder: Path, change: Callable[[Path], object], is_another: bool
) -> None:
    before = model_identity(str(folder))
    change(folder)
    assert (model_identity(str(folder)) != before) == is_another
    assert json.loads((folder / HASH_CACHE).read_text())


def test_a_byte_that_changed_without_a_trace_is_refused_when_the_model_is_loaded(folder: Path) -> None:
    before = model_identity(str(folder))
    weights, cache = folder / "model.safetensors", folder / HASH_CACHE
    stored = json.loads(cache.read_text())
    [known] = [sha256 for key, sha256 in stored.items() if key.startswith("model.safetensors|")]
    _flip_a_byte(weights)
    status = weights.stat()  # of a disk that rots the times stay, too
    key = f"model.safetensors|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"
    cache.write_text(json.dumps(stored | {key: known}))
    assert model_identity(str(folder)) == before  # not read
    with pytest.raises(ModelError, match=r"another one of model\.safetensors, with the same sizes and times"):
        LanguageModel.load(str(folder))
    assert LanguageModel.load(str(folder)).identity == model_identity(str(folder)) != before


def test_a_process_reads_a_model_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = hashlib.file_digest

    def counted(file: Any, algorithm: str) -> Any:
        read.append(Path(file.name).name)
        return plain(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    for _ in range(3):
        model_identity(str(folder), read=True)
    assert read.count("model.safetensors") == 1
    assert len(read) == len(set(read))


def test_the_name_is_known_without_loading_torch(folder: Path) -> None:
    program = (
        "import sys; from toolformer_ops.language_model import AnnotationPrompt; "
        "from toolformer_ops.language_model.models import model_identity; "
        "print(model_identity(sys.argv[1]), 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [model_identity(str(folder)), "False", "False"]


@pytest.mark.parametrize("revision", [None, "main", COMMIT[:12], COMMIT.upper()])
def test_a_hub_model_without_a_pinned_commit_is_refused(revision: str | None) -> None:
    with pytest.raises(ModelError, match="revision of 40 hexadecimal digits"):
        model_identity("HuggingFaceTB/SmolLM2-135M", revision)


def test_a_hub_model_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="Check id and revision"):
        model_identity("no-such-owner/no-such-model", COMMIT)


@pytest.fixture
def asked_hosts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that were looked up; none is found."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        "huggingface_hub.utils._detect_agent._registry", None
    )  # what the client asks for once a process
    hosts: list[str] = []

    def look_up(host: str, *_: object, **__: object) -> None:
        hosts.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "no such host in this test")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return hosts


@pytest.fixture
def hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the models that were downloaded before, empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_an_offline_deployment_asks_no_hub_by_any_of_its_loaders(
    asked_hosts: list[str], hub_cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLFORMER_HUB_OFFLINE", "true")
    load_settings.cache_clear()
    with pytest.raises(ModelError, match="or a copy of it in the local hub cache"):
        model_identity("owner/model", COMMIT)
    with pytest.raises(ModelError, match="or a copy of it in the local hub cache"):
        load_weights("owner/model", COMMIT, "float32", "cpu", threads=1)
    with pytest.raises(ToolError, match="expected a sequence-to-sequence checkpoint"):
        load_checkpoint("TOOLFORMER_TRANSLATOR_MODEL", "owner/model", COMMIT, load_settings(), "float32")
    shutil.copytree(folder, hub_cache / "models--owner--model" / "snapshots" / COMMIT)
    assert LanguageModel.load("owner/model", COMMIT).identity == f"owner/model@{COMMIT}"  # network and tokenizer
    assert asked_hosts == []


def test_a_file_of_the_hub_cache_that_is_not_what_was_downloaded_is_refused(
    hub_cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLFORMER_HUB_OFFLINE", "true")
    load_settings.cache_clear()
    snapshot, blobs = (hub_cache / "models--owner--model" / part for part in (f"snapshots/{COMMIT}", "blobs"))
    for path in (snapshot, blobs):
        path.mkdir(parents=True)
    for file in folder.glob("[!.]*"):  # as the hub's client keeps them: large files by SHA-256, others by git's hash
        content = file.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        blob = blobs / (hashlib.sha256(content).hexdigest() if file.suffix == ".safetensors" else git)
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(blob)
    assert LanguageModel.load("owner/model", COMMIT).identity == f"owner/model@{COMMIT}"
    for name in ("model.safetensors", "tokenizer.json"):
        _flip_a_byte((snapshot / name).resolve())
        with pytest.raises(ModelError, match=rf"{name}: expected the content that was downloaded"):
            LanguageModel.load("owner/model", COMMIT)
        _flip_a_byte((snapshot / name).resolve())


def test_any_other_deployment_asks_the_hub(
    asked_hosts: list[str], hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between the hub client's tries
    assert not hub_cache.exists()
    with pytest.raises(InfrastructureError, match="expected the model hub to answer"):
        model_identity("owner/model", COMMIT)
    assert set(asked_hosts) == {"huggingface.co"}


@pytest.mark.parametrize(
    ("status", "kind"), [(404, ModelError), (401, ModelError), (429, InfrastructureError), (503, InfrastructureError)]
)
def test_a_hub_that_cannot_serve_is_told_from_one_that_has_no_such_model(status: int, kind: type[Exception]) -> None:
    answer = httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co/owner/model"))
    error = OSError("transformers says no more than this")
    error.__cause__ = HfHubHTTPError("what the hub said", response=answer)
    assert type(hub_model_missing("owner/model", COMMIT, error)) is kind


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EACCES, ConfigurationError, "found: .*/home/nobody.*Set HF_HOME"),
        (errno.EROFS, ConfigurationError, "found: .*/home/nobody.*Set HF_HOME"),
        (errno.ENOSPC, InfrastructureError, "expected space on the disk at /home/nobody"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_hub_cache_that_cannot_be_written_is_no_model_that_is_missing(
    number: int, kind: type[Exception], words: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = OSError(number, os.strerror(number), "/home/nobody")

    def download(*_: object, **__: object) -> str:
        if wrapped:  # as transformers does
            raise OSError("PermissionError at /home/nobody when downloading owner/model") from refused
        raise refused

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(kind, match=words):
        model_identity("owner/model", COMMIT)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", download)
    with pytest.raises(kind, match=words):
        load_checkpoint("TOOLFORMER_MT_MODEL", "owner/model", COMMIT, load_settings(), "float32")


def _change(name: str, **changes: Any) -> Callable[[Path], object]:
    """Change fields of a JSON file."""
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))


def _without_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


OWN_CODE = {"AutoModelForCausalLM": "modeling.Model", "AutoConfig": "modeling.Config"}


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (shutil.rmtree, {}, r"found nothing at '.*/model'"),
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), {},
            r"found no \*\.safetensors",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), {}, r"found no tokenizer\.json"),
        (_rewrite("model.safetensors", b"not tensors"), {}, "expected a causal language model"),
        # Missing weights are not made up.
        (_without_a_weight, {}, r"found none for 1 of them, such as model\.layers\.1\.mlp\.up_proj\.weight"),
        (_change("config.json", model_type="unheard-of", auto_map=OWN_CODE), {}, "without remote code"),
        (lambda _: None, {"dtype": "int8"}, "expected a dtype of float32, bfloat16, float16, found 'int8'"),
        (lambda _: None, {"device": "abacus"}, "expected a device such as cpu or cuda:0"),
    ],
)  # fmt: skip
def test_what_is_no_whole_model_without_code_of_its_own_is_refused(
    folder: Path, damage: Callable[[Path], object], options: dict[str, str], message: str
) -> None:
    (folder / "modeling.py").write_text("raise SystemExit('ran')")
    damage(folder)
    with pytest.raises(ModelError, match=message):
        LanguageModel.load(str(folder), **options)


def test_a_tokenizer_that_brings_its_own_code_is_refused_and_a_network_that_does_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _change("config.json", auto_map={"AutoModelForCausalLM": "modeling.Model"})(folder)
    LanguageModel.load(str(folder))
    assert "config.json names its own code (auto_map), which is never run" in caplog.text
    (folder / "tokenizing.py").write_text("raise SystemExit('ran')")
    said = r"expected a tokenizer of transformers, found auto_map .*tokenizing\.Own.*remove auto_map"
    for own in (
        {"AutoTokenizer": ["tokenizing.Own", None]},
        {"AutoTokenizer": [None, "tokenizing.Own"]},
        ["tokenizing.Own", None],
    ):
        _change("tokenizer_config.json", auto_map=own)(folder)
        with pytest.raises(ModelError, match=said):
            LanguageModel.load(str(folder))
    _change("tokenizer_config.json", auto_map={"AutoProcessor": "processing.Own"})(folder)
    LanguageModel.load(str(folder))


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers with linear_attention"),
        ({"attention_types": [[["global", "local"], 6]]}, "layers with local attention"),
        ({"model_type": "falcon", "alibi": True}, r"positions as a bias of scores \(ALiBi\)"),
        ({"text_config": {"layer_types": ["mamba"]}}, "layers with mamba"),
    ],
)
def test_a_model_that_cannot_share_a_cache_is_refused_by_its_configuration(
    folder: Path, named: dict[str, Any], words: str
) -> None:
    model_identity(str(folder), annotates=True)
    _change("config.json", **named)(folder)
    with pytest.raises(ModelError, match=f"expected layers that can share a KV cache, found .*{words}.*such as Llama"):
        model_identity(str(folder), annotates=True)
    model_identity(str(folder))


def test_a_model_that_cannot_share_a_cache_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"BloomForCausalLM: expected .* found layers with positions as a bias"):
        LanguageModel.load(str(save_tiny("bloom", tmp_path / "bloom")))


def test_a_network_that_computes_something_else_than_the_engine_takes_it_to_is_not_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the comparison at load, in every number format; an error within it is not taken for an answer."""
    run = CausalModel.run

    def shifted(self: CausalModel, ids: Any, positions: Any, attend: Any) -> Any:
        return run(self, ids, positions + (positions >= 9), attend)

    def failing(*_: Any) -> Any:
        raise RuntimeError("a kernel that fails")

    for dtype in ("float32", "bfloat16", "float16"):
        LanguageModel.load(str(folder), dtype=dtype)
        with monkeypatch.context() as patch:
            patch.setattr(CausalModel, "run", shifted)
            with pytest.raises(ModelError, match=r"LlamaForCausalLM: expected .* found logits that differ by"):
                LanguageModel.load(str(folder), dtype=dtype)
            patch.setattr(CausalModel, "run", failing)
            with pytest.raises(RuntimeError, match="a kernel that fails"):
                LanguageModel.load(str(folder), dtype=dtype)


def test_a_gpu_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    with pytest.raises(InfrastructureError, match="expected a GPU"):
        LanguageModel.load(str(folder), device="cuda")


def test_a_model_whose_layers_are_spread_computes_the_same_bits(folder: Path, tmp_path: Path) -> None:
    """Spread by accelerate's hooks, as over GPUs: here over memory and disk, since there is one device."""
    from transformers import AutoModelForCausalLM

    spread_out = {"dtype": "float32", "device_map": PLACES, "offload_folder": tmp_path}
    network = answer_on_first_device(AutoModelForCausalLM.from_pretrained(folder, **spread_out))
    assert network.hf_device_map["model.layers.1"] == "disk"
    plain = LanguageModel.load(str(folder))
    spread = LanguageModel(CausalModel(network, 1024), Tokenization(load_tokenizer(str(folder), None)), plain.identity)

    def numbers(model: LanguageModel) -> list[Any]:
        positions = find_all(model, TEXT, at_most=3)
        text = TextToSample(TEXT, positions[0], "key")
        return [positions, sample_calls(model, [text]), score_calls(model, TEXT, [calculator(12)])]

    assert numbers(spread) == numbers(plain)


def test_gpus_that_cannot_hold_a_model_are_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate would leave the rest to the CPU, and each token would bring it to the GPU again."""
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    asked: list[Any] = []

    def on_cpu(*arguments: Any, device_map: str, **options: Any) -> Any:
        asked.append(device_map)
        return load(*arguments, device_map=PLACES, offload_folder=tmp_path, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", on_cpu)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(loading, "_require_room", lambda *_, **__: None)  # together they have room enough
    settings = load_settings().model_copy(update={"model_parallel": "layers"})
    with pytest.raises(
        ModelError,
        match="expected GPUs that hold all of its weights, found none, without room for 6 of its parts, such as lm_head",
    ):
        load_weights(str(folder), None, "float32", "cuda", 1, settings)
    assert asked == ["balanced"]


@pytest.fixture
def gib_free(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is free on each GPU of a machine; nothing can be loaded there."""
    free = [79.0, 79.0]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(free))
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    monkeypatch.setattr(loading, "free_bytes", lambda number: int(free[number] * loading.GIB))
    monkeypatch.setattr(loading, "gpus", lambda: [f"{number}: an A100" for number in range(len(free))])
    return free


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """With which options transformers was asked for weights; it has none."""
    from transformers import AutoModelForCausalLM

    options: list[dict[str, Any]] = []

    def refuse(_source: str, **given: Any) -> NoReturn:
        options.append(given)
        raise RuntimeError("transformers was asked")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    return options


def test_weights_go_from_their_files_to_the_gpu(
    folder: Path, gib_free: list[float], asked: list[dict[str, Any]]
) -> None:
    for device in ("cuda", "cuda:1", "cpu"):
        with pytest.raises(ModelError, match="transformers was asked"):
            load_weights(str(folder), None, "float32", device, 1)
    assert [options.get("device_map") for options in asked] == ["cuda", "cuda:1", None]


@pytest.mark.parametrize("sharded", [False, True])
def test_what_weights_take_is_in_the_headers_of_their_files(folder: Path, sharded: bool) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
    numbers = sum(parameter.numel() for parameter in network.parameters())
    if sharded:
        (folder / "model.safetensors").unlink()
        network.save_pretrained(folder, max_shard_size="50KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
    assert weight_bytes(folder, torch.float32) == 4 * numbers
    assert weight_bytes(folder, torch.bfloat16) == 2 * numbers


@pytest.mark.parametrize(
    ("device", "way", "remedy"),
    [
        (
            "cuda",
            "off",
            r"Spread it over several GPUs .*TOOLFORMER_MODEL_PARALLEL=layers\), or choose a node with larger",
        ),
        ("cuda", "layers", r"Give the pod more GPUs .*, or choose a node with larger GPUs, or bfloat16"),
        ("cuda:1", "off", r"Spread it over several GPUs"),
    ],
)
def test_a_model_larger_than_the_free_memory_is_refused_before_anything_is_loaded(
    folder: Path, gib_free: list[float], asked: list[dict[str, Any]], device: str, way: str, remedy: str
) -> None:
    settings = load_settings().model_copy(update={"model_parallel": way})
    needed = weight_bytes(folder, torch.float32) / loading.GIB
    with pytest.raises(ModelError, match="transformers was asked"):
        load_weights(str(folder), None, "float32", device, 1, settings)
    gib_free[:] = [0.4 * needed, 0.4 * needed] if way == "layers" else [0.9 * needed, 0.9 * needed]
    message = rf"expected .* GiB of GPU memory for its weights in float32, found .*{remedy}"
    with pytest.raises(ModelError, match=message) as found:
        load_weights(str(folder), None, "float32", device, 1, settings)
    assert exit_code(found.value) == 2
    assert len(asked) == 1
    with pytest.raises(ModelError, match="transformers was asked"):
        load_weights(str(folder), None, "bfloat16", device, 1, settings)


def test_the_demos_model_is_whole_and_says_nothing_of_its_quantisation(smollm2_dir: Path) -> None:
    config = json.loads((smollm2_dir / "config.json").read_text())
    assert "quantization_config" not in config
    assert [path.name for path in smollm2_dir.parent.iterdir() if ".part-" in path.name] == []
    model = LanguageModel.load(str(smollm2_dir))
    assert model.window_tokens == 8192
    for text in (" [", " ->", ")]"):
        assert len(model.tokenize(text)) == 1


def test_a_conversion_without_its_file_is_refused(tmp_path: Path) -> None:
    from toolformer_ops.language_model.models.conversion import convert_gguf

    with pytest.raises(ModelError, match="expected a GGUF file, found nothing"):
        convert_gguf(tmp_path / "none.gguf", tmp_path / "out")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match="expected a GGUF file of a causal language model"):
        convert_gguf(tmp_path / "bad.gguf", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.gguf"]
