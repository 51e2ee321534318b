"""Which model is loaded, under what name, and what is refused."""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gguf
import httpx2
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoModelForCausalLM

from tests.tiny_models import GROUPED, save_tiny, save_tiny_model, token_ids, train_tokenizer
from tests.unit.language_model.conftest import (
    TEXT,
    TextToSample,
    calculator,
    find_all,
    sample_calls,
    score_calls,
)
from toolformer_ops.config import load_settings
from toolformer_ops.errors import (
    ConfigurationError,
    DeviceMemoryError,
    InfrastructureError,
    ModelError,
    ToolError,
)
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models import conversion, loading, model_identity
from toolformer_ops.language_model.models.conversion import convert_gguf
from toolformer_ops.language_model.models.identity import HASH_CACHE
from toolformer_ops.language_model.models.loading import answer_on_first_device, load_weights
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.tools.sequence_to_sequence import load_checkpoint

COMMIT = "93efa2f097d58c2a74874c7e644dbc9b0cee75a2"


@pytest.fixture
def folder(tiny_model_dir, tmp_path):
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def _flip_a_byte(file: Path) -> None:
    """Change a byte and set the file's time back, as a copy that keeps times does."""
    time.sleep(0.05)  # more than the file system's clock resolves
    status, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_copy_of_a_model_elsewhere_has_its_identity(folder, tmp_path):
    identity = model_identity(str(folder))
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "model", ignore=shutil.ignore_patterns(".*"))
    assert model_identity(str(copy)) == LanguageModel.load(str(folder)).identity == identity
    assert re.fullmatch("model@[0-9a-f]{16}", identity)


def test_notes_in_its_folder_do_not_change_the_identity_of_a_model(folder):
    identity = model_identity(str(folder))
    (folder / "README.md").write_bytes(b"notes")
    (folder / HASH_CACHE).write_bytes(b"[1, 2")  # a damaged file of hashes is made anew
    assert model_identity(str(folder)) == identity
    assert json.loads((folder / HASH_CACHE).read_text())


def test_each_file_that_decides_changes_the_identity_of_a_model(folder):
    names = {model_identity(str(folder))}
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        with (folder / name).open("ab") as file:
            file.write(b" ")
        names.add(model_identity(str(folder)))
    _flip_a_byte(folder / "model.safetensors")  # with the same size and time
    assert len(names | {model_identity(str(folder))}) == 5


def test_a_byte_that_changed_without_a_trace_is_refused_when_the_model_is_loaded(folder):
    before = model_identity(str(folder))
    weights, cache = folder / "model.safetensors", folder / HASH_CACHE
    stored = json.loads(cache.read_text())
    [known] = [sha256 for key, sha256 in stored.items() if key.startswith("model.safetensors|")]
    _flip_a_byte(weights)
    status = weights.stat()  # of a disk that rots the times stay, too
    key = f"model.safetensors|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"
    cache.write_text(json.dumps(stored | {key: known}))
    assert model_identity(str(folder)) == before  # not read
    with pytest.raises(ModelError, match=r"another one of model\.safetensors"):
        LanguageModel.load(str(folder))
    assert LanguageModel.load(str(folder)).identity == model_identity(str(folder)) != before


def test_a_hub_model_without_a_pinned_commit_is_refused():
    for revision in (None, "main", COMMIT[:12]):
        with pytest.raises(ModelError, match="revision of 40 hexadecimal digits"):
            model_identity("owner/model", revision)


@pytest.fixture
def snapshot(monkeypatch, tmp_path):
    """Where an empty folder of downloads would have a hub model, of an offline deployment."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TOOLFORMER_HUB_OFFLINE", "true")
    load_settings.cache_clear()
    return tmp_path / "hub/models--owner--model/snapshots" / COMMIT


def test_an_offline_deployment_asks_no_hub_by_any_of_its_loaders(snapshot, folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        "huggingface_hub.utils._detect_agent._registry", None
    )  # which the client asks for once
    look_up = mock.Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "no such host in this test"))
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(ModelError, match="or a copy of it in the local hub cache"):
        model_identity("owner/model", COMMIT)
    with pytest.raises(ModelError, match="or a copy of it in the local hub cache"):
        load_weights("owner/model", COMMIT, "float32", "cpu", threads=1)
    with pytest.raises(ToolError, match="sequence-to-sequence checkpoint"):
        load_checkpoint("TOOLFORMER_TRANSLATOR_MODEL", "owner/model", COMMIT, load_settings(), "float32")
    shutil.copytree(folder, snapshot)
    assert (
        LanguageModel.load("owner/model", COMMIT).identity == f"owner/model@{COMMIT}"
    )  # network and tokenizer
    assert not look_up.called


def test_a_deployment_that_is_not_offline_asks_the_hub(monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.utils._detect_agent._registry", None
    )  # which the client asks for once
    look_up = mock.Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "no such host in this test"))
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.delenv("TOOLFORMER_HUB_OFFLINE", raising=False)
    load_settings.cache_clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between the hub client's tries
    with pytest.raises(InfrastructureError, match="expected the model hub to answer"):
        model_identity("owner/other", COMMIT)
    assert {call.args[0] for call in look_up.call_args_list} == {"huggingface.co"}


def test_a_file_of_the_hub_cache_that_is_not_what_was_downloaded_is_refused(snapshot, folder):
    blobs = snapshot.parents[1] / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in folder.glob(
        "[!.]*"
    ):  # as the hub's client keeps them: large files by SHA-256, others by git's hash
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


def test_a_hub_or_a_cache_that_cannot_serve_is_no_model_that_is_missing(monkeypatch):
    request = httpx2.Request("GET", "https://huggingface.co/owner/model")
    for cause, kind in (
        (HfHubHTTPError("no", response=httpx2.Response(401, request=request)), ModelError),
        (HfHubHTTPError("no", response=httpx2.Response(429, request=request)), InfrastructureError),
        (OSError(errno.EACCES, "refused", "/home/nobody"), ConfigurationError),
        (OSError(errno.ENOSPC, "full", "/home/nobody"), InfrastructureError),
    ):
        error = OSError("transformers says no more than this")
        error.__cause__ = cause
        monkeypatch.setattr("huggingface_hub.hf_hub_download", mock.Mock(side_effect=error))
        with pytest.raises(kind):
            model_identity("owner/model", COMMIT)


def _change(name: str, **changes: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(
        json.dumps(json.loads((folder / name).read_text()) | changes)
    )


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
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
            {},
            r"\*\.safetensors",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), {}, r"tokenizer\.json"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"not tensors"),
            {},
            "causal language model",
        ),
        (
            lambda folder: save_tiny("bloom", folder),
            {},
            "BloomForCausalLM: expected layers that can share a KV cache",
        ),
        (_without_a_weight, {}, r"model\.layers\.1\.mlp\.up_proj\.weight"),  # which is not made up
        (_change("config.json", model_type="unheard-of", auto_map=OWN_CODE), {}, "without remote code"),
        (lambda _: None, {"dtype": "int8"}, "int8"),
        (lambda _: None, {"device": "abacus"}, "abacus"),
    ],
)
def test_what_is_no_whole_model_without_code_of_its_own_is_refused(folder, damage, options, message):
    (folder / "modeling.py").write_text("raise SystemExit('ran')")
    damage(folder)
    with pytest.raises(ModelError, match=message):
        LanguageModel.load(str(folder), **options)


def test_a_tokenizer_that_brings_its_own_code_is_refused_as_a_network_is_told(folder, caplog):
    _change("config.json", auto_map={"AutoModelForCausalLM": "modeling.Model"})(folder)
    LanguageModel.load(str(folder))
    assert "auto_map" in caplog.text
    (folder / "tokenizing.py").write_text("raise SystemExit('ran')")
    for own in ({"AutoTokenizer": [None, "tokenizing.Own"]}, ["tokenizing.Own", None]):
        _change("tokenizer_config.json", auto_map=own)(folder)
        with pytest.raises(ModelError, match=r"auto_map .*tokenizing\.Own"):
            LanguageModel.load(str(folder))


def test_a_model_that_cannot_share_a_cache_is_refused_by_its_configuration(folder):
    model_identity(str(folder), annotates=True)
    written = (folder / "config.json").read_text()
    for named in (
        {"attention_types": [[["global", "local"], 6]]},
        {"text_config": {"layer_types": ["mamba"]}},
    ):
        (folder / "config.json").write_text(json.dumps(json.loads(written) | named))
        with pytest.raises(ModelError, match="expected layers that can share a KV cache"):
            model_identity(str(folder), annotates=True)
        model_identity(str(folder))


def test_a_network_that_computes_something_else_than_the_engine_takes_it_to_is_not_loaded(
    folder, monkeypatch
):
    """Found by the comparison at load."""
    run = CausalModel.run

    def shifted(self: CausalModel, ids: Any, parts: Any) -> Any:
        return run(
            self,
            ids,
            [
                SimpleNamespace(
                    tokens=part.tokens, positions=part.positions + (part.positions >= 9), attend=part.attend
                )
                for part in parts
            ],
        )

    LanguageModel.load(str(folder), dtype="bfloat16")
    monkeypatch.setattr(CausalModel, "run", shifted)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ModelError, match="logits that differ"):
            LanguageModel.load(str(folder), dtype=dtype)


@pytest.mark.parametrize("raised", [RuntimeError, ValueError, TypeError, AssertionError, ZeroDivisionError])
def test_what_a_network_raises_in_the_comparison_is_why_it_is_refused(folder, monkeypatch, raised):
    monkeypatch.setattr(CausalModel, "run", mock.Mock(side_effect=raised("shapes do not fit")))
    with pytest.raises(ModelError, match=f"ends in {raised.__name__}: shapes do not fit. Choose a model"):
        LanguageModel.load(str(folder))


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(torch.OutOfMemoryError, DeviceMemoryError), (torch.AcceleratorError, torch.AcceleratorError)],
)
def test_what_says_something_of_the_machine_is_no_refusal(folder, monkeypatch, raised, expected):
    monkeypatch.setattr(CausalModel, "run", mock.Mock(side_effect=raised("of the machine")))
    with pytest.raises(expected, match="of the machine"):
        LanguageModel.load(str(folder))


RECURRENT = "recurrent layers"
IN_THE_LAYER = "computes inside the layer"
SMALL = {"hidden_size": 32, "num_hidden_layers": 2}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "topk_group": 1}
HEADS = {"num_attention_heads": 4}


@pytest.mark.parametrize(
    ("configuration", "numbers", "reason"),
    [
        ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "ALiBi"),
        ("FalconConfig", SMALL | HEADS | {"alibi": True}, "ALiBi"),
        ("FalconConfig", SMALL | HEADS | {"alibi": False}, IN_THE_LAYER),
        ("RwkvConfig", SMALL | {"attention_hidden_size": 32}, RECURRENT),
        ("MambaConfig", SMALL | {"state_size": 8}, RECURRENT),
        ("FalconMambaConfig", SMALL | {"state_size": 8}, RECURRENT),
        ("XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, "both directions"),
        ("DeepseekV2Config", GROUPED | LATENT | EXPERTS | {"n_group": 1}, "latent attention"),
        ("DeepseekV3Config", GROUPED | LATENT | EXPERTS | {"n_group": 2}, "latent attention"),
        ("GptOssConfig", GROUPED | {"head_dim": 8, "num_local_experts": 4}, "sinks"),
    ],
)
def test_an_architecture_that_cannot_share_is_refused_with_its_own_reason(
    tmp_path, configuration, numbers, reason
):
    import transformers

    tokenizer = train_tokenizer()
    tokenizer.model_max_length = 1024
    config = getattr(transformers, configuration)(**numbers | token_ids(tokenizer))
    model = save_tiny_model(tmp_path / "model", config, tokenizer)
    with pytest.raises(ModelError, match=f"expected layers that can share a KV cache, found .*{reason}"):
        LanguageModel.load(str(model))


@pytest.mark.parametrize("named", ["CTRLTokenizer", "BioGptTokenizer", "XLMTokenizer", "MarianTokenizer"])
def test_a_tokenizer_whose_files_are_not_there_is_refused(folder, named):
    _change("tokenizer_config.json", tokenizer_class=named)(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="expected"):
        LanguageModel.load(str(folder))


def _with_normalizer(folder: Path, *kinds: str) -> None:
    description = json.loads((folder / "tokenizer.json").read_text())
    steps = [{"type": kind} for kind in kinds]
    description["normalizer"] = {"type": "Sequence", "normalizers": steps}
    (folder / "tokenizer.json").write_text(json.dumps(description))


@pytest.mark.parametrize("kinds", [("Lowercase",), ("NFD", "StripAccents")])
def test_a_tokenizer_that_changes_case_or_accents_is_refused(folder, kinds):
    _with_normalizer(folder, *kinds)
    with pytest.raises(ModelError, match="expected a tokenizer that keeps capitals"):
        LanguageModel.load(str(folder))


def test_a_tokenizer_that_composes_characters_is_taken(folder):
    _with_normalizer(folder, "NFC")
    LanguageModel.load(str(folder))


def test_a_model_whose_layers_are_spread_computes_the_same_bits(folder, tmp_path):
    """Spread by accelerate's hooks, as over GPUs: here over memory and disk, since there is one device."""
    parts = ("embed_tokens", "layers.0", "layers.1", "norm", "rotary_emb")
    places = {"lm_head": "cpu"} | {f"model.{part}": "disk" if part == "layers.1" else "cpu" for part in parts}
    spread_out = {"dtype": "float32", "device_map": places, "offload_folder": tmp_path}
    network = answer_on_first_device(AutoModelForCausalLM.from_pretrained(folder, **spread_out))
    # Over GPUs and these, each token would bring the weights to the GPU again.
    with pytest.raises(ModelError, match="without room for 6 of its parts"):
        loading._require_on_gpus(network, "a model")
    plain = LanguageModel.load(str(folder))
    spread = LanguageModel(
        compared_model(network, 1024), Tokenization(loading.load_tokenizer(str(folder), None)), plain.identity
    )

    def numbers(model: LanguageModel) -> list[Any]:
        positions = find_all(model, TEXT, at_most=3)
        text = TextToSample(TEXT, positions[0], "key")
        return [positions, sample_calls(model, [text]), score_calls(model, TEXT, [calculator(12)])]

    assert numbers(spread) == numbers(plain)


def test_weights_go_from_their_files_to_the_gpu_unless_they_are_larger_than_its_free_memory(
    folder, monkeypatch
):
    settings = load_settings().model_copy(update={"model_parallel": "layers"})
    network = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
    needed = 4 * sum(parameter.numel() for parameter in network.parameters())
    (folder / "model.safetensors").unlink()
    network.save_pretrained(folder, max_shard_size="50KB")  # in several files
    free = [0, needed]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    monkeypatch.setattr(loading, "free_memory", lambda device: free[device.index])
    monkeypatch.setattr(loading, "gpus", lambda: ["0: an A100", "1: an A100"])
    load = mock.Mock(side_effect=RuntimeError("transformers was asked"))
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", load)
    with pytest.raises(ModelError, match="transformers was asked"):
        load_weights(str(folder), None, "float32", "cuda", 1, settings)
    assert load.call_args.kwargs["device_map"] == "balanced"
    alone = settings.model_copy(update={"model_parallel": "off"})
    with pytest.raises(ModelError, match="transformers was asked"):
        load_weights(str(folder), None, "float32", "cuda:1", 1, alone)
    assert load.call_args.kwargs["device_map"] == "cuda:1"
    free[1] -= 1
    with pytest.raises(ModelError, match="in float32, found"):
        load_weights(str(folder), None, "float32", "cuda", 1, settings)
    assert load.call_count == 2


def test_a_conversion_makes_the_table_of_names_once():
    with conversion.read_once():
        tables = [gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2) for _ in range(2)]
    assert tables[0] is tables[1]


def test_a_file_that_is_no_gguf_model_is_refused_without_leaving_anything(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF but not really")
    for name in ("none.gguf", "bad.gguf"):
        with pytest.raises(ModelError, match="expected a GGUF file"):
            convert_gguf(tmp_path / name, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]


@pytest.mark.parametrize(
    ("dtype", "remedy"), [("float16", "TOOLFORMER_DTYPE=bfloat16"), ("bfloat16", "weights are damaged")]
)
def test_a_network_without_finite_numbers_is_refused_when_it_is_loaded(folder, dtype, remedy):
    network, tokenizer, _ = loading.load_network(str(folder), None, dtype, "cpu", 1)
    with torch.no_grad():
        network.get_output_embeddings().weight.fill_(torch.finfo(network.dtype).max)
    with pytest.raises(ModelError, match=remedy):
        compared_model(network, tokenizer.model_max_length)
