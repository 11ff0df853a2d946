"""A stand-in for `python -m engine host`: speaks the wire of `engine/protocol.py` on stdio, well or badly.

Standard library only and no import of `engine`, so that it starts in a few ms and cannot share the protocol's bugs.

    fake_engine.py [MODE] [--rate TOKENS/S] [--after N] [--tokens N] [--links vram,pcie,ram,disk] [--notice SENTENCE]
                   [--code CODE] [--thinks]

normal         streams a Markdown answer, honours Cancel
slow           the same at 3 tokens/s, with a slow load
crash          kills itself with SIGKILL after N tokens, in the middle of a line
crash-load     the same in the middle of loading
oom            says "out of memory" on stderr after N tokens and exits with 137
garbage        writes lines that are no messages among the good ones
hang           never says another word after `Started`, and does not notice that stdin closed
hang-start     never says hello
wrong-version  says hello in another protocol version
fail-load      answers every Load with Failed and CODE
fail-generate  answers every Generate with Failed
strict         refuses a conversation whose roles do not alternate, as most models' templates do
no-models      knows no model

With --thinks an answer begins with a thought and ends with the call of a tool, and the model takes a reasoning effort.
"""

import argparse
import json
import os
import queue
import random
import re
import signal
import sys
import threading
import time
from typing import Any

MODES = (
    "normal", "slow", "crash", "crash-load", "oom", "garbage", "hang", "hang-start", "wrong-version", "fail-load", "fail-generate",
    "strict", "no-models",
)  # fmt: skip
GARBAGE = (
    "Loading checkpoint shards: 40%", "", "{", '{"type": "Unknown", "request_id": 1}', '{"type": "Text", "request_id": "x"}',
    "[1, 2]", "null", "\x1b[31mwarning\x1b[0m", '{"type": "Text", "request_id": 1, "text": "a"}',
)  # fmt: skip
ANSWER = """The planner cannot use your index because the column is wrapped in a function. Compare a **range** instead:

```sql
SELECT id, total
FROM   orders
WHERE  created_at >= '2026-11-28'
  AND  created_at <  '2026-11-29';
```

If it is still slow, check these in order:

1. `EXPLAIN (ANALYZE, BUFFERS)` shows whether the heap is read for every row.
2. A covering index on `(created_at) INCLUDE (id, total)` avoids that.
3. `VACUUM` the table, so that the visibility map is fresh.

| Plan | Rows read | Time |
|---|---:|---:|
| Sequential scan | 40 000 000 | 9.1 s |
| Index range | 12 400 | 14 ms |

Both plans return *the same rows*; only the way to them differs.
"""
THOUGHT = "The column is wrapped in a function, so the index cannot be used.\n\nSuggest a **range**, and look at the plan."
CALL = 'explain_query\n{\n  "sql": "SELECT id, total FROM orders WHERE created_at >= \'2026-11-28\'",\n  "analyze": true\n}'
EXPERT_BYTES = 13_271_040
LAYERS, EXPERTS, TOP_K = 24, 32, 4
CEILINGS = {"vram": 760.0, "pcie": 24.6, "ram": 56.3, "disk": 6.9}
SHARES = {"vram": 0.64, "pcie": 0.04, "ram": 0.29, "disk": 0.03}  # of the experts of one token
EFFICIENCY = {"vram": 0.55, "pcie": 0.42, "ram": 0.84, "disk": 0.35}  # of the ceiling, while busy
TEXT_SECONDS, METER_SECONDS = 1 / 30, 1 / 5
PREFILL_CHUNK, PREFILL_RATE = 512, 2000  # tokens, tokens/s


class FakeEngine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.mode: str = options.mode
        self.rate: float = 3.0 if self.mode == "slow" else options.rate
        self.after: int = options.after
        self.tokens: int = options.tokens
        self.links: list[str] = options.links.split(",")
        self.notice: str = options.notice
        self.code: str = options.code
        self.thinks: bool = options.thinks
        self.random = random.Random(7)
        self.inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.waiting: list[dict[str, Any]] = []
        self.is_loaded = False
        self.context_used = 0

    def run(self) -> int:
        if self.mode == "hang-start":
            sleep_forever()
        threading.Thread(target=self.read_stdin, daemon=True).start()
        version = 999 if self.mode == "wrong-version" else 1
        self.send("Hello", protocol_version=version, stoker_version="0.0-fake", pid=os.getpid())
        print("fake engine: ready", file=sys.stderr, flush=True)
        while True:
            request = self.waiting.pop(0) if self.waiting else self.inbox.get()
            if request is None:
                return 0
            handle = {"ListModels": self.list_models, "Load": self.load, "Generate": self.generate}.get(request["type"])
            if handle is not None:
                handle(request)

    def read_stdin(self) -> None:
        for line in sys.stdin:
            self.inbox.put(json.loads(line))
        self.inbox.put(None)

    def send(self, message: str, **fields: Any) -> None:
        if self.mode == "garbage":
            print(self.random.choice(GARBAGE))
        print(json.dumps({"type": message, **fields}), flush=True)

    def list_models(self, request: dict[str, Any]) -> None:
        models = [
            {"name": "gpt-oss-20b", "path": "/models/gpt-oss-20b", "architecture": "gpt_oss", "weight_format": "mxfp4",
             "bytes": 13_761_264_768, "problem": ""},
            {"name": "qwen3-30b-a3b", "path": "/models/qwen3-30b-a3b", "architecture": "qwen3_moe", "weight_format": "bf16",
             "bytes": 61_064_245_248, "problem": ""},
            {"name": "half-downloaded", "path": "/models/half-downloaded", "architecture": "", "weight_format": "",
             "bytes": 4_000_000_000, "problem": "The file model-00002-of-00003.safetensors is missing."},
        ]  # fmt: skip
        chosen = [] if self.mode == "no-models" else models
        self.send("Models", request_id=request["request_id"], models=chosen, folder="/models")

    def load(self, request: dict[str, Any]) -> None:
        request_id, total = request["request_id"], 13_761_264_768
        for step in range(1, 6):
            time.sleep(0.2 if self.mode == "slow" else 0.01)
            self.send("Progress", request_id=request_id, stage="Reading experts", done=total * step // 5, total=total)
            if self.mode == "crash-load" and step == 3:
                die()
        if self.mode == "fail-load":
            text = "gpt-oss-20b needs 14.2 GB of memory and 9.1 GB is free."
            return self.send("Failed", request_id=request_id, code=self.code, text=text, hint="Close other programs.")
        self.is_loaded = True
        plan = self.plan(request["model"], request.get("wishes") or {})
        reasoning = {"efforts": ["low", "medium", "high"], "default_effort": "medium"} if self.thinks else {}
        return self.send("Loaded", request_id=request_id, plan=plan, notice=self.notice, reasoning=reasoning)

    def plan(self, model: str, wishes: dict[str, Any]) -> dict[str, Any]:
        return {
            "model_name": model.rstrip("/").rsplit("/", 1)[-1], "architecture": "gpt_oss", "weight_format": "mxfp4",
            "num_layers": LAYERS, "num_experts": EXPERTS, "top_k": TOP_K, "expert_bytes": EXPERT_BYTES,
            "slots_per_layer": [12] * LAYERS, "dense_bytes": 1_270_000_000, "expert_ram_bytes": 12 * LAYERS * EXPERT_BYTES,
            "kv_bytes": 402_653_184, "workspace_bytes": 268_435_456, "context": wishes.get("context") or 8192,
            "model_bytes": 13_761_264_768,
            "sentence": "12 of 32 experts per layer stay in memory, because 5.8 GB is free; the others are read from disk.",
            "predicted": self.traffic("decode", 1 / self.rate, 1, jitter=0.0, origin="predicted"),
            "predicted_tokens_per_second": [self.rate * 0.85, self.rate * 1.1],
            "ceilings_gbps": {link: CEILINGS[link] for link in self.links},
        }  # fmt: skip

    def traffic(self, phase: str, seconds: float, tokens: int, jitter: float, origin: str = "") -> dict[str, Any]:
        """One pass: experts and dense weights over each link, a little different every time."""
        lookups = LAYERS * TOP_K
        links: dict[str, dict[str, Any]] = {}
        for link in self.links:
            share = SHARES[link] * (1 + self.random.uniform(-jitter, jitter) * (4 if link == "disk" else 1))
            count = int(max(0.0, share) * lookups * EXPERT_BYTES) + (1_270_000_000 if link == "vram" else 0)
            reached = 0.8 if origin == "predicted" else self.random.gauss(EFFICIENCY[link], 0.03)
            busy = min(seconds, count / (CEILINGS[link] * reached * 1e9))
            links[link] = {"bytes": count, "seconds": busy, "origin": origin or ("derived" if link == "ram" else "measured")}
        misses = max(0, round(lookups * 0.07 + self.random.uniform(-3, 3)))
        waited_for = next((link for link in ("disk", "pcie") if link in links), None)
        stall = links[waited_for]["seconds"] * 0.5 * self.random.random() if waited_for else 0.0  # part of its busy time
        in_vram = min(lookups - misses, round(SHARES["vram"] * lookups)) if "vram" in links else 0
        return {"phase": phase, "links": links, "hits": lookups - misses, "misses": misses, "vram_hits": in_vram,
                "stall_seconds": stall, "seconds": seconds, "tokens": tokens}  # fmt: skip

    def generate(self, request: dict[str, Any]) -> None:
        request_id = request["request_id"]
        if not self.is_loaded:
            return self.send("Failed", request_id=request_id, code="engine.no_model", text="No model is loaded.", hint="")
        if self.mode == "fail-generate":
            text, hint = "The chat is longer than the context.", "Begin a new chat or allow a larger context."
            return self.send("Failed", request_id=request_id, code="session.context_full", text=text, hint=hint)
        roles = [message["role"] for message in request["messages"]]
        if self.mode == "strict" and roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            text = "Conversation roles must alternate user/assistant/user/assistant/..."
            return self.send("Failed", request_id=request_id, code="text.template", text=text, hint="")
        prompt_tokens = sum(len(message["content"].split()) + 4 for message in request["messages"])
        reused = min(self.context_used, prompt_tokens - 1)
        begun = time.perf_counter()
        self.send("Started", request_id=request_id, prompt_tokens=prompt_tokens, reused_tokens=reused)
        if self.mode == "hang":
            sleep_forever()
        is_read = self.read(request_id, prompt_tokens, reused)
        first = time.perf_counter()
        limit = (request.get("sampling") or {}).get("max_tokens", 1024)
        made, reason = self.stream(request_id, limit) if is_read else (0, "cancelled")
        rate = (made - 1) / max(1e-9, time.perf_counter() - first) if made > 1 else 0.0
        self.context_used = prompt_tokens + made
        return self.send("Finished", request_id=request_id, stop_reason=reason, prompt_tokens=prompt_tokens, new_tokens=made,
                         first_token_seconds=first - begun if made else 0.0, tokens_per_second=rate,
                         context_used=self.context_used)  # fmt: skip

    def read(self, request_id: int, prompt_tokens: int, reused: int) -> bool:
        """The prompt in chunks, each with its record; False when cancelled between two."""
        done = reused
        while done < prompt_tokens:
            tokens = min(PREFILL_CHUNK, prompt_tokens - done)
            seconds = 0.02 + tokens / PREFILL_RATE
            time.sleep(seconds)
            done += tokens
            self.send("Progress", request_id=request_id, stage="Reading the prompt", done=done, total=prompt_tokens)
            record = self.traffic("prefill", seconds, tokens, jitter=0.1)
            self.send("Meter", request_id=request_id, records=[record])
            if self.is_cancelled(request_id):
                return False
        return True

    def stream(self, request_id: int, limit: int) -> tuple[int, str]:
        """(tokens made, stop reason). Text at most 30 times a second, Meter at most 5 times."""
        words = re.findall(r"\s*\S+", "\n\n" + ANSWER)
        target = self.tokens or len(words)
        text, records, sent = "", [], 0
        if self.thinks:
            self.think(request_id)
        text_at = meter_at = begun = time.perf_counter()
        for made in range(1, min(target, limit) + 1):
            time.sleep(max(0.0, begun + made / self.rate - time.perf_counter()))
            is_last = made == min(target, limit)
            text += words[(made - 1) % len(words)].lstrip() if made == 1 else words[(made - 1) % len(words)]
            records.append(self.traffic("decode", self.random.gauss(1, 0.08) / self.rate, 1, jitter=0.12))
            now = time.perf_counter()
            if is_last or now - text_at >= TEXT_SECONDS:
                self.send("Text", request_id=request_id, text=text, tokens=made - sent, total_tokens=made, span=1)
                text, sent, text_at = "", made, now
            if is_last or now - meter_at >= METER_SECONDS:
                self.send("Meter", request_id=request_id, records=records)
                records, meter_at = [], now
            self.misbehave(made)
            if self.is_cancelled(request_id):
                self.send("Meter", request_id=request_id, records=records)
                return made, "cancelled"
        if self.thinks:
            self.send("Text", request_id=request_id, text=CALL, tokens=1, total_tokens=target, kind="call", span=2)
        return min(target, limit), "end" if target <= limit else "max_tokens"

    def think(self, request_id: int) -> None:
        for made, word in enumerate(re.findall(r"\s*\S+", THOUGHT), start=1):
            time.sleep(1 / self.rate)
            self.send("Text", request_id=request_id, text=word, tokens=1, total_tokens=made, kind="thought", span=0)

    def misbehave(self, made: int) -> None:
        if made < self.after:
            return
        if self.mode == "crash":
            die()
        if self.mode == "oom":
            text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB."
            print(f"Traceback (most recent call last):\n{text}", file=sys.stderr, flush=True)
            os._exit(137)

    def is_cancelled(self, request_id: int) -> bool:
        while not self.inbox.empty():
            request = self.inbox.get()
            if request is None:
                os._exit(0)
            if request["type"] == "Cancel" and request["request_id"] == request_id:
                return True
            if request["type"] != "Cancel":
                self.waiting.append(request)
        return False


def die() -> None:
    print("fake engine: about to die", file=sys.stderr, flush=True)
    sys.stdout.write('{"type": "Text", "request_id": 1, "text": "half a li')
    sys.stdout.flush()
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def sleep_forever() -> None:
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", default="normal", choices=MODES)
    parser.add_argument("--rate", type=float, default=40.0, help="tokens per second")
    parser.add_argument("--after", type=int, default=20, help="tokens before a crash")
    parser.add_argument("--tokens", type=int, default=0, help="length of an answer; 0 is the whole text once")
    parser.add_argument("--links", default="vram,pcie,ram,disk")
    parser.add_argument("--notice", default="", help="said of every loaded model")
    parser.add_argument("--thinks", action="store_true", help="see above")
    parser.add_argument("--code", default="plan.too_large", help="of a load that fails")
    return FakeEngine(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
