"""Tokens a second, operations and the share of a card's peak."""

import pytest
from transformers import AutoModelForCausalLM

from tests.tiny_models import SHAPES
from toolformer_ops.config import Settings
from toolformer_ops.finetuning.adapter import with_adapters
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.throughput import (
    WORK,
    Cards,
    NetworkWork,
    Throughput,
    cards_of,
    has_experts,
    pass_operations,
    training_operations,
)
from toolformer_ops.runs.choices import FinetuningChoices


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA H100 NVL", 835.5e12),
        ("NVIDIA H200", 989.5e12),
        ("NVIDIA GH200 480GB", 989.5e12),
        ("NVIDIA L40S", 366.5e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA A10G", None),
        ("NVIDIA RTX A4000", None),
        ("Tesla T4", None),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None),
        ("cpu", None),
    ],
)
def test_the_peak_of_a_card_by_its_name(name, peak):
    assert Cards(name).peak == peak


def test_the_peak_of_several_cards_is_their_sum():
    assert Cards("NVIDIA A100-SXM4-80GB", 4).peak == 4 * 312e12


H200 = Cards("NVIDIA H200")


@pytest.mark.parametrize(
    ("throughput", "words"),
    [
        # 35,000 tokens a second of 7 billion weights: 490 of 989.5 TFLOP/s.
        (
            Throughput(350_000, 10.0, 350_000 * 14e9, H200),
            "35,000 tokens/s, 49.5% of the peak of NVIDIA H200",
        ),
        (
            Throughput(350_000, 10.0, 350_000 * 14e9, Cards("NVIDIA H200", 2)),
            "35,000 tokens/s, 24.8% of the peak of 2 NVIDIA H200",
        ),
        (Throughput(50, 10.0, 1e9, Cards("cpu")), "5 tokens/s"),
        (
            Throughput(50, 10.0, 1e9, Cards("Tesla T4")),
            "5 tokens/s (the peak of Tesla T4 is not known)",
        ),
        (
            Throughput(50, 10.0, None, H200),
            "5 tokens/s (no share of the peak is known of a mixture of experts)",
        ),
    ],
)
def test_a_speed_in_words(throughput, words):
    assert str(throughput) == words


def test_a_cpu_is_no_card():
    assert cards_of(Settings(_env_file=None, device="cpu")) == Cards("cpu")


@pytest.mark.parametrize(
    ("device", "parallel", "processes", "count"),
    [("cuda", "off", 1, 1), ("cuda", "layers", 1, 8), ("cuda:1", "layers", 1, 1), ("cuda", "off", 4, 4)],
)
def test_a_network_computes_on_the_cards_that_hold_its_layers_or_one_a_process(
    device, parallel, processes, count, monkeypatch
):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    settings = Settings(_env_file=None, device=device, model_parallel=parallel)
    assert cards_of(settings, processes=processes) == Cards("NVIDIA H200", count)


# Operations


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return SHAPES["llama"](tmp_path_factory.mktemp("llama"))


@pytest.fixture
def network(llama):
    return AutoModelForCausalLM.from_pretrained(llama)


# A layer of 32 columns: q and o 32 x 32, k and v 16 x 32, three of 64 x 32, two norms; two layers and a norm at the end.
DECODER = 2 * (2 * 1024 + 2 * 512 + 3 * 2048 + 2 * 32) + 32


def test_a_pass_takes_two_operations_for_each_weight_of_the_layers(network):
    vocabulary = network.config.vocab_size
    assert pass_operations(network) == (2 * DECODER, 2 * 32 * vocabulary)


def test_a_step_takes_six_operations_for_each_weight_but_the_embeddings(network):
    head = 32 * network.config.vocab_size
    assert training_operations(network, network) == 6 * (DECODER + head)


def test_embeddings_that_are_the_output_projection_count_once(network):
    head = 32 * network.config.vocab_size
    network.lm_head.weight = network.model.embed_tokens.weight
    assert training_operations(network, network) == 6 * (DECODER + head)


def test_a_step_takes_four_operations_for_each_frozen_weight(network):
    head = 32 * network.config.vocab_size
    choices = FinetuningChoices(finetune_method="lora", finetune_lora_rank=1)
    adapters = 2 * (4 * 32 + 2 * (32 + 16) + 3 * (32 + 64))
    adapted = with_adapters(network, choices, "tiny")
    assert training_operations(network, adapted) == 4 * (DECODER + head) + 6 * adapters


def test_a_mixture_of_experts_has_no_number(network):
    network.config.num_local_experts = 8
    assert has_experts(network.config)
    assert pass_operations(network) == (None, None)
    assert training_operations(network, network) is None


def test_the_engine_counts_the_tokens_that_its_network_reads(llama):
    model = LanguageModel.load(str(llama))
    text = "The shop had 520 shirts."
    before = NetworkWork(WORK.tokens, WORK.operations)
    model.text_losses([text])
    done = WORK.since(before)
    tokens = rows = len(
        model.tokenize(text).ids
    )  # with the start token, without the last, which predicts nothing
    head = 2 * 32 * AutoModelForCausalLM.from_pretrained(llama).config.vocab_size
    assert done == NetworkWork(tokens, 2.0 * DECODER * tokens + rows * head)


def test_work_of_which_a_part_has_no_number_has_none():
    work = NetworkWork(10, 5.0)
    work.add(NetworkWork(3, None))
    assert work == NetworkWork(13, None)


def test_the_seconds_make_a_speed_of_the_work():
    assert NetworkWork(10, 5.0).in_seconds(2.0, Cards("cpu")).tokens_per_second == 5.0
