"""The engine child over its real pipes: every request gets one answer, cancel is quick, the stream stays clean, EOF ends it."""

import os
import signal
from pathlib import Path

import pytest

from engine.config import Sampling
from engine.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    ChatMessage,
    Failed,
    Finished,
    Generate,
    Hello,
    ListModels,
    Load,
    Loaded,
    Meter,
    Models,
    Phase,
    Reasoning,
    ReasoningChoices,
    SpanKind,
    Started,
    StopReason,
    Text,
    Wishes,
)  # fmt: skip
from tests.helpers.host_client import HostClient
from tests.helpers.tiny import write_mixtral

HELLO = (ChatMessage("user", "hello"),)
THINKER = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think></think>' if enable_thinking is false else '<think>' }}"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    models = home / "stoker" / "models"
    write_mixtral(models / "tiny", max_position_embeddings=4096)
    write_mixtral(models / "broken")
    (models / "broken" / "model.safetensors").write_bytes(b"")
    write_mixtral(home / "thinker")
    (home / "thinker" / "chat_template.jinja").write_text(THINKER)
    return os.environ | {"XDG_DATA_HOME": str(home)}


def test_models_load_generate(environment: dict[str, str]) -> None:
    with HostClient(environment) as host:
        (hello,) = host.wait_for(Hello)
        assert isinstance(hello, Hello)
        assert hello.protocol_version == PROTOCOL_VERSION
        host.send(ListModels(1))
        models = host.wait_for(Models)[-1]
        assert isinstance(models, Models)
        assert [(entry.name, bool(entry.problem)) for entry in models.models] == [("broken", True), ("tiny", False)]

        host.send(Generate(2, HELLO))
        assert isinstance(host.wait_for(Failed)[-1], Failed)
        host.send(Load(3, "broken"))
        failed = host.wait_for(Failed)[-1]
        assert isinstance(failed, Failed)
        assert failed.request_id == 3
        assert failed.hint
        host.send(Load(4, "tiny", Wishes(expert_ram="50%")))
        loaded = host.wait_for(Loaded)[-1]
        assert isinstance(loaded, Loaded)
        assert loaded.plan.predicted is not None

        host.send(Generate(5, HELLO, Sampling(max_tokens=40, seed=1)))
        events = host.wait_for(Finished)
        finished = events[-1]
        assert isinstance(finished, Finished)
        assert any(isinstance(event, Started) and event.reused_tokens == 0 for event in events)
        records = [record for event in events if isinstance(event, Meter) for record in event.records]
        texts = [event for event in events if isinstance(event, Text)]
        assert len(records) == finished.new_tokens == sum(event.tokens for event in texts), "a short prompt is one chunk"
        assert records[0].phase is Phase.PREFILL
        assert host.bad_lines == 0


def test_a_thought_is_told_as_one_and_can_be_switched_off_where_the_template_lets(environment: dict[str, str]) -> None:
    """A random model never closes what its prompt has opened."""
    with HostClient(environment) as host:
        host.send(Load(1, str(Path(environment["XDG_DATA_HOME"]) / "thinker")))
        loaded = host.wait_for(Loaded)[-1]
        assert isinstance(loaded, Loaded)
        assert loaded.reasoning == ReasoningChoices(can_switch=True, is_on=True)
        kinds = []
        for number, reasoning in enumerate((Reasoning(), Reasoning(is_on=False)), start=2):
            host.send(Generate(number, HELLO, Sampling(max_tokens=40, seed=1), reasoning))
            texts = [event for event in host.wait_for(Finished) if isinstance(event, Text)]
            assert sum(text.tokens for text in texts) == 40
            kinds.append({text.kind for text in texts if text.text})
        assert kinds == [{SpanKind.THOUGHT}, {SpanKind.ANSWER}]
        host.send(Generate(9, HELLO, reasoning=Reasoning("high")))
        failed = host.wait_for(Failed)[-1]
        assert isinstance(failed, Failed)
        assert failed.code == "reasoning.effort"


def test_a_second_turn_reuses_the_first(environment: dict[str, str]) -> None:
    with HostClient(environment) as host:
        host.send(Load(1, "tiny"))
        host.send(Generate(2, HELLO, Sampling(max_tokens=8, temperature=0)))
        text = "".join(event.text for event in host.wait_for(Finished) if isinstance(event, Text))
        host.send(Generate(3, (*HELLO, ChatMessage("assistant", text), ChatMessage("user", "more")), Sampling(max_tokens=2)))
        started = next(event for event in host.wait_for(Finished) if isinstance(event, Started))
        assert started.reused_tokens >= len("<user>hello\n<assistant>")


def test_cancel_ends_within_a_token_and_leaves_the_engine_usable(environment: dict[str, str]) -> None:
    with HostClient(environment) as host:
        host.send(Load(1, "tiny"))
        host.send(Generate(2, HELLO, Sampling(max_tokens=3000, seed=3)))
        host.wait_for(Text)
        host.send(Cancel(2))
        finished = host.wait_for(Finished)[-1]
        assert isinstance(finished, Finished)
        assert finished.stop_reason is StopReason.CANCELLED
        assert finished.new_tokens < 3000
        host.send(Generate(3, HELLO, Sampling(max_tokens=3, seed=3)))
        assert isinstance(host.wait_for(Finished)[-1], Finished)


def test_a_prompt_longer_than_the_context_is_refused(environment: dict[str, str]) -> None:
    with HostClient(environment) as host:
        host.send(Load(1, "tiny", Wishes(context=64)))
        host.send(Generate(2, (ChatMessage("user", "x" * 500),)))
        failed = host.wait_for(Failed)[-1]
        assert isinstance(failed, Failed)
        assert failed.code == "prompt.too_long"
        assert "64" in failed.text
        host.send(Generate(3, HELLO, Sampling(max_tokens=3000, temperature=1.5, seed=1)))
        finished = host.wait_for(Finished)[-1]
        assert isinstance(finished, Finished)
        assert finished.stop_reason in (StopReason.CONTEXT_FULL, StopReason.END)
        assert finished.context_used <= 64


GARBAGE = [b"not json\n", b'{"type":"Nothing"}\n', b"\n", b"\xff\xfe\n", b'{"type":"Load"}\n', b"[" * 100_000 + b"\n"]


def test_garbage_is_ignored(environment: dict[str, str]) -> None:
    with HostClient(environment) as host:
        for line in GARBAGE:
            host.send_raw(line)
        host.send(ListModels(9))
        assert isinstance(host.wait_for(Models)[-1], Models)


def test_end_of_input_ends_the_child(environment: dict[str, str]) -> None:
    with HostClient(environment) as host:
        host.send(Load(1, "tiny"))
        host.send(Generate(2, HELLO, Sampling(max_tokens=3000, seed=3)))
        host.wait_for(Text)
        assert host.process.stdin
        host.process.stdin.close()
        assert host.process.wait(timeout=2) == 0


def test_a_killed_child_leaves_whole_lines(environment: dict[str, str]) -> None:
    with HostClient(environment) as host:
        host.send(Load(1, "tiny"))
        host.send(Generate(2, HELLO, Sampling(max_tokens=3000, seed=3)))
        host.wait_for(Text)
        host.process.send_signal(signal.SIGKILL)
        assert host.process.wait(timeout=5) == -signal.SIGKILL
    assert host.bad_lines <= 1, "at most the line that was being written"


def test_stray_prints_do_not_reach_the_stream(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins, os, threading\n"
        "genuine = builtins.__import__\n"
        "def noisy(name, *rest, **named):\n"
        "    if name == 'torch':\n"
        "        print('a stray print'); os.write(1, b'and a stray write\\n')\n"
        "    return genuine(name, *rest, **named)\n"
        "builtins.__import__ = noisy\n"
    )
    with HostClient(environment | {"PYTHONPATH": str(tmp_path)}) as host:
        host.send(Load(1, "tiny"))
        assert isinstance(host.wait_for(Loaded)[-1], Loaded)
        assert host.bad_lines == 0
