"""A stand-in for `python -m engine download`: a catalogue, a library and a queue from memory, over the wire of `engine/protocol.py`.

Standard library only and no import of `engine`, as `fake_engine.py`.

    fake_store.py [MODE] [--rate BYTES/S] [--machine FILE] [--plan KIND] [--measured]

normal         answers everything; the queue runs at the rate, in steps of 50 ms
empty          knows no models and no downloads
offline        every question to the Hub fails
scenes         a queue with a running, a waiting, a paused and two failed jobs; a library with a missing drive; nothing moves on
crash          dies when it is told to run the queue
wrong-version  says hello in another protocol version
bench-fails    cannot be measured
bench-dies     dies while it measures
bench-slow     measures without an end, until it is cancelled

--machine FILE   a `MachineFacts` as a line of the protocol, which any question for the machine gets
--plan KIND      of what `PlanFor` answers: disk (default), ram, gpu, full-disk, unreadable, unsupported, refused
--measured       it has been measured before
"""

import argparse
import json
import os
import sys
import threading
import time
from typing import Any

GB = 1_000_000_000
CARD = """# Qwen3-30B-A3B

A Mixture-of-Experts model with **30.5B** parameters, of which 3.3B are active for each token.

## Highlights

- Better at following instructions, reasoning and tool use
- 262 144 tokens of context

```python
from transformers import AutoModelForCausalLM
```

| Benchmark | Score |
|---|---:|
| MMLU-Pro | 78.4 |
| GPQA | 70.4 |
"""


def verdict(fit: str, text: str, speed: list[float] | None = None, more: list[float] | None = None) -> dict[str, Any]:
    gains = [{"change": "ram", "text": "20 GB more RAM", "amount": 20 * GB, "tokens_per_second": more}] if more else []
    return {"fit": fit, "text": text, "tokens_per_second": speed, "plan": empty_plan(gains=gains) if more else None}


def empty_plan(**more: Any) -> dict[str, Any]:
    counts = ("num_layers", "num_experts", "top_k", "expert_bytes", "dense_bytes", "expert_ram_bytes", "kv_bytes",
              "workspace_bytes", "context", "model_bytes")  # fmt: skip
    words = ("model_name", "architecture", "weight_format", "sentence")
    return {**dict.fromkeys(counts, 0), **dict.fromkeys(words, ""), "slots_per_layer": [], **more}


EXPERT, KV_TOKEN, LAYERS, EXPERTS = 9_437_184, 196_608, 48, 128  # of Qwen3-30B-A3B in BF16
_KV_SHARES = {"fp32": 2.0, "bf16": 1.0, "q8": 0.53125}
RAM_ROOM, CARD_ROOM, DRIVE_FREE, MODEL = 21_900_000_000, 11_400_000_000, 212 * GB, 61_100_000_000
LEAST_EXPERTS, DENSE = 16 * EXPERT, 3_100_000_000
REFUSED = "Qwen3-30B-A3B needs 24.9 GB of memory at least, and 21.9 GB is available.", "Ask for a context of 8192."
Refusal = tuple[str, str]


def planned(wishes: dict[str, Any], kind: str, rates: bool) -> tuple[dict[str, Any] | Refusal, dict[str, Any]]:
    """A plan, or why there is none, and the limits of the wishes: the more memory for experts, the faster."""
    plan, limits = placed(wishes, kind)
    if not isinstance(plan, dict):
        return plan, limits
    if not rates:
        return plan | {"unknown": "Cannot estimate, because this computer has not been measured yet."}, limits
    plan |= with_speed(plan)
    plan["prices"] += card_prices(plan, wishes) if kind == "gpu" else []
    return plan, limits


def placed(wishes: dict[str, Any], kind: str) -> tuple[dict[str, Any] | Refusal, dict[str, Any]]:
    """By plain arithmetic."""
    room = 2 * MODEL if kind == "ram" else RAM_ROOM
    context, chunk = wishes.get("context") or 8192, wishes.get("prefill_chunk") or 512
    kv_type = wishes.get("kv_type") or "bf16"
    kv_bytes, workspace = context * int(KV_TOKEN * _KV_SHARES[kv_type]), 820_000 * chunk
    held = {"dense": DENSE, "kv": kv_bytes, "workspace": workspace}
    fixed = sum(held.values())
    least_vram = fixed + 2 * EXPERT
    can_serve = kind == "gpu" and least_vram <= CARD_ROOM
    allowed = of_card(wishes.get("vram_limit")) if can_serve else 0
    most = min(LAYERS * EXPERTS * EXPERT, room - 700_000_000 - (0 if allowed else DENSE + kv_bytes))
    limits = {"least_context": 256, "most_context": 262_144, "least_expert_ram": min(LEAST_EXPERTS, max(most, 0)),
              "most_expert_ram": max(most, LEAST_EXPERTS)}  # fmt: skip
    if can_serve:
        limits |= {"least_vram": least_vram, "most_vram": CARD_ROOM}
    if 0 < allowed < least_vram:
        enough = -(-least_vram // 1_000_000)
        return (
            f"{wishes['vram_limit']} of graphics memory is too little: the dense weights, the context and 2 experts take "
            f"{least_vram / GB:.2f} GB.",
            f"Set the graphics memory to {enough}MB or more, or to 0 to leave the graphics card unused.",
        ), limits
    if most < LEAST_EXPERTS or kind == "refused":
        return REFUSED, limits
    ram = min(most, int(wishes["expert_ram"].removesuffix("MB")) * 1_000_000) if wishes.get("expert_ram") else most
    slots, on_card = min(LAYERS * EXPERTS, ram // EXPERT), (allowed - fixed) // EXPERT if allowed else 0
    plan = empty_plan(
        model_name="Qwen3-30B-A3B-Instruct-2507", architecture="qwen3_moe", weight_format="BF16", num_layers=LAYERS,
        num_experts=EXPERTS, top_k=8, expert_bytes=EXPERT, dense_bytes=DENSE, expert_ram_bytes=slots * EXPERT,
        slots_per_layer=[slots // LAYERS] * LAYERS, kv_bytes=kv_bytes, workspace_bytes=workspace, context=context,
        prefill_chunk=chunk, kv_type=kv_type,
        model_bytes=MODEL, sentence="",
    )  # fmt: skip
    plan["tiers"] = [
        {"link": "ram", "name": "RAM", "room": room, "experts": slots * EXPERT, "num_experts": slots}
        | (held if not on_card else {}),
        {"link": "disk", "name": "/dev/nvme0n1p2", "room": 40 * GB if kind == "full-disk" else DRIVE_FREE, "model": MODEL},
    ]
    if on_card:
        plan["tiers"].insert(0, {"link": "vram", "name": "NVIDIA GeForce RTX 4070", "room": allowed, **held,
                                 "experts": on_card * EXPERT, "num_experts": on_card})  # fmt: skip
        plan["card_slots"] = [on_card]
    elif can_serve:
        plan["notes"] = ["NVIDIA GeForce RTX 4070 stays unused: no graphics memory may be taken."]
    return plan, limits


def of_card(limit: str | None) -> int:
    """Bytes that may be taken."""
    if not limit:
        return CARD_ROOM
    if limit.endswith("%"):
        return int(CARD_ROOM * float(limit[:-1]) / 100)
    return min(CARD_ROOM, int(limit.removesuffix("MB")) * (1_000_000 if limit.endswith("MB") else 1))


def speed(held: float, on_card: float = 0.0) -> list[float]:
    """Tokens/s with these shares of the experts in any memory and on a card, whose layers are faster too."""
    computing = 0.08 if not on_card else 0.045 - 0.03 * min(1.0, on_card)
    middle = 1 / (computing + 0.5 * (1 - min(1.0, held)) ** 3)
    return [middle * 0.8, middle * 1.25]


def shares(plan: dict[str, Any]) -> tuple[float, float]:
    """Of the experts, those in any memory and those on a card."""
    held = {tier["link"]: tier.get("num_experts", 0) / (LAYERS * EXPERTS) for tier in plan["tiers"]}
    return min(1.0, sum(held.values())), held.get("vram", 0.0)


def with_speed(plan: dict[str, Any]) -> dict[str, Any]:
    share, card = shares(plan)
    misses = round(384 * (1 - share) ** 3)
    links: dict[str, Any] = {"ram": {"bytes": 6_500_000_000, "seconds": 0.08}}
    if card:
        links = {"vram": {"bytes": 4_500_000_000, "seconds": 0.02}, "ram": {"bytes": 2_100_000_000, "seconds": 0.05}}
    if misses:
        links["disk"] = {"bytes": misses * EXPERT, "seconds": 0.1}
    step = 2 * GB
    more: dict[str, Any] = {
        "predicted": {"phase": "decode", "links": links, "hits": 384 - misses, "misses": misses},
        "predicted_tokens_per_second": speed(share, card), "ceilings_gbps": {"ram": 43.2, "disk": 2.7},
        "limiting": "disk" if misses else "ram", "basis": "published traces of other models" if misses else "",
        "first_tokens": [{"prompt_tokens": 1024, "low": 3.4, "high": 17.0}, {"prompt_tokens": 8192, "low": 27.0, "high": 44.0}],
        "prices": [
            {"change": "context", "text": "twice", "amount": plan["kv_bytes"], "tokens_per_second": speed(share - 0.04, card)},
            {"change": "prefill_chunk", "text": "twice", "amount": plan["workspace_bytes"],
             "tokens_per_second": speed(share - 0.02, card)},
            *({"change": "kv_type", "text": f"keys and values as {kind}",
               "tokens_per_second": speed(share + 0.02 - 0.01 * times, card),
               "amount": int(plan["kv_bytes"] * (times / _KV_SHARES[plan["kv_type"]] - 1))}
              for kind, times in _KV_SHARES.items() if kind != plan["kv_type"]),
            {"change": "expert_ram", "text": "more", "amount": step, "tokens_per_second": speed(share + step / MODEL, card)},
        ],
    }  # fmt: skip
    if misses:
        more["gains"] = [
            {"change": "ram", "text": "32 GB more RAM", "amount": 32 * GB, "tokens_per_second": speed(share + 0.6, card)},
            {"change": "disk", "text": "a drive of 5.4 GB/s", "amount": 5 * GB, "tokens_per_second": speed(share + 0.12, card)},
        ]
    if card:
        more["ceilings_gbps"] |= {"vram": 412.0, "pcie": 24.6}
    return more


def card_prices(plan: dict[str, Any], wishes: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the limit on graphics memory: a step up where there is more, one down, and doing without."""
    taken = taken_of_card(plan)
    found = []
    for size in (taken + GB, taken - GB, 0) if taken else (CARD_ROOM,):
        other, _ = placed(wishes | {"vram_limit": f"{size // 1_000_000}MB" if size else "0"}, "gpu")
        if isinstance(other, dict) and (more := taken_of_card(other) - taken):
            found.append(
                {"change": "vram_limit", "text": "more or less", "amount": more, "tokens_per_second": speed(*shares(other))}
            )
    return found


def taken_of_card(plan: dict[str, Any]) -> int:
    return sum(
        tier[part] for tier in plan["tiers"] if tier["link"] == "vram" for part in ("dense", "kv", "workspace", "experts")
    )


def model(name: str, total: float, active: float, *releases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name, "architecture": "qwen3_moe", "releases": list(releases), "licence": "Apache-2.0", "gate": "open",
        "total_params": int(total * 1e9), "active_params": int(active * 1e9), "downloads": 0, "likes": 0, **more,
    }  # fmt: skip


def release(repo: str, form: str, gigabytes: float, judged: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"repo": repo, "weight_format": form, "bytes": int(gigabytes * GB), "verdict": judged}


RAM = "All of it, 13.8 GB, fits into the memory that is free now."
DISK = "21.4 GB of its 58.0 GB of experts fit into memory; the others are read from disk when a token needs them."
MACHINE = {
    "ram_total": 32 * GB, "ram_available": 24_100_000_000, "is_capped": False, "system": "Linux",
    "cpu": {"name": "AMD Ryzen 7 7700", "physical_cores": 8, "logical_cores": 16, "isa": ["portable", "avx2", "avx512"]},
    "drives": [{"folder": "/home/anna/.cache/huggingface/hub", "device": "/dev/nvme0n1p2", "mount": "/", "kind": "nvme",
                "filesystem": "ext4", "free_bytes": 212 * GB, "total_bytes": 512 * GB}],
    "notices": ["No graphics card is on the PCI bus (/sys/bus/pci/devices lists 12 devices, none of class 03)."],
}  # fmt: skip
CATALOGUE = [
    model("gpt-oss-20b", 20.9, 3.6, release("openai/gpt-oss-20b", "MXFP4", 13.8, verdict("ram", RAM, [19.6, 24.1]))),
    model("Qwen3-30B-A3B", 30.5, 3.3,
          release("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "FP8", 31.2, verdict("disk", DISK, [6.1, 10.8], [16.4, 21.0])),
          release("Qwen/Qwen3-30B-A3B-Instruct-2507", "BF16", 61.1, verdict("disk", DISK, [2.2, 4.1], [4.9, 8.8]))),
    model("gpt-oss-120b", 116.8, 5.1, release("openai/gpt-oss-120b", "MXFP4", 65.3, verdict("disk", DISK, [2.4, 4.6], [3.1, 5.9]))),
    model("Llama-gated-8x", 46.7, 12.9, release("maker/Gated-8x7B", "BF16", 93.4, verdict("disk", DISK, [0.8, 1.4])), licence="",
          gate="terms"),
    model("Qwen3-235B-A22B", 235.1, 22.2, release("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "FP8", 236.4, verdict(
        "no_space", "It takes 236 GB and the drive has 212 GB free: it needs 24.4 GB more.", [0.4, 0.7]))),
    model("GLM-5.3-Flash", 320.0, 18.0, release("zai-org/GLM-5.3-Flash", "BF16", 642.0, verdict(
        "unsupported", "Stoker does not run the architecture glm5_next yet.")), licence="", architecture="glm5_next"),
]  # fmt: skip
FOUND = [
    model(
        "Qwen3-Coder-30B-A3B-Instruct", 30.5, 0, release("Qwen/Qwen3-Coder-30B-A3B-Instruct", "BF16", 61.1), downloads=812_000
    ),
    model("Qwen3-Coder-Private", 30.5, 0, release("maker/Gated-8x7B", "BF16", 61.1), downloads=1200, gate="review", licence=""),
]


def entry(name: str, form: str, gigabytes: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "path": f"/models/{name.replace('/', '--')}", "architecture": "gpt_oss", "weight_format": form,
        "bytes": int(gigabytes * GB), "problem": "", "repo": name if "/" in name else "", "licence": "apache-2.0",
        "state": "whole", "is_ours": True, "last_used": 0.0, "verdict": None, **more,
    }  # fmt: skip


LIBRARY = [
    entry("openai/gpt-oss-20b", "MXFP4", 13.8, last_used=time.time() - 3600, verdict=verdict("ram", RAM, [19.6, 24.1])),
    entry("stoker-demo-8x135m", "BF16", 1.4, is_ours=False, state="unverified", last_used=time.time() - 3 * 86400,
          verdict=verdict("ram", RAM, [35.0, 44.0])),
    entry("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "FP8", 31.2, state="damaged",
          problem="A file of it is damaged: download it again, which brings that file alone."),
    entry("mistralai/Mixtral-8x7B-Instruct-v0.1", "BF16", 93.4, state="away", path="/media/usb/models/mixtral",
          problem="/media/usb/models is not available: connect its drive."),
    entry("old-llama", "FP16", 26.1, state="unverified", is_ours=False, licence="", path="/data/models/old-llama",
          problem="The architecture llama is not supported yet."),
]  # fmt: skip


def job(repo: str, state: str, done: float = 0, total: float = 0, **more: Any) -> dict[str, Any]:
    return {
        "repo": repo, "revision": "main", "folder": "", "state": state, "total_bytes": int(total * GB), "done_bytes": int(done * GB),
        "commit": "c" * 40, "code": "", "text": "", "hint": "", **more,
    }  # fmt: skip


SCENE = [
    job("openai/gpt-oss-120b", "waiting", 21.8, 65.3),
    job("Qwen/Qwen3-Coder-30B-A3B-Instruct", "waiting", 0, 0),
    job("Qwen/Qwen3-30B-A3B-Instruct-2507", "paused", 37.2, 61.1),
    job("mistralai/Mixtral-8x7B-Instruct-v0.1", "failed", 61.0, 93.4, code="download.no_space",
        text="The drive with /home/anna/models is full: 12.4 GB more are needed.", hint="Free some space there, then resume."),
    job("maker/Gated-8x7B", "failed", code="hub.gated",
        text="maker/Gated-8x7B is given only to those who sign in and accept its terms (401).",
        hint="Accept them at https://huggingface.co/maker/Gated-8x7B, then resume."),
    job("openai/gpt-oss-20b", "done", 13.8, 13.8),
]  # fmt: skip


class FakeStore:
    def __init__(self, mode: str, rate: float, machine: str = "", plan: str = "disk", has_rates: bool = False) -> None:
        self.mode, self.rate = mode, rate
        self.machine, self.plan, self.has_rates = machine, plan, has_rates
        self.lock = threading.Lock()
        is_full = mode != "empty"
        self.library = [dict(item) for item in LIBRARY] if is_full else []
        self.jobs = [dict(item) for item in SCENE] if mode == "scenes" else []
        self.cancelled: set[int] = set()
        self.folders = ["/models", "/hub", "/data/models"]

    def run(self) -> int:
        self.send(
            "Hello", protocol_version=999 if self.mode == "wrong-version" else 1, stoker_version="0.0-fake", pid=os.getpid()
        )
        for line in sys.stdin:
            request = json.loads(line)
            threading.Thread(target=self.answer, args=(request,), daemon=True).start()
        os._exit(0)

    def send(self, kind: str, **fields: Any) -> None:
        with self.lock:
            print(json.dumps({"type": kind, **fields}), flush=True)

    def fail(self, number: int, code: str, text: str, hint: str = "") -> None:
        self.send("Failed", request_id=number, code=code, text=text, hint=hint)

    def answer(self, request: dict[str, Any]) -> None:
        number, kind = request["request_id"], request["type"]
        getattr(self, kind)(number, request)

    def ListModels(self, number: int, request: dict[str, Any]) -> None:
        self.send("Models", request_id=number, models=self.library, folder="/models", watched=self.folders)

    def AddFolder(self, number: int, request: dict[str, Any]) -> None:
        if "nothing" in request["path"]:
            return self.fail(
                number, "model.not_found", f"{request['path']} is no model folder: it has no config.json.", "Choose another."
            )
        self.library.append(entry("added-model", "FP8", 8.0, is_ours=False, state="unverified", path=request["path"]))
        self.folders.append(request["path"])
        return self.ListModels(number, request)

    def ForgetFolder(self, number: int, request: dict[str, Any]) -> None:
        self.library = [item for item in self.library if not item["path"].startswith(request["path"])]
        self.ListModels(number, request)

    def RemoveModel(self, number: int, request: dict[str, Any]) -> None:
        found = next(item for item in self.library if item["path"] == request["path"])
        if not request["only_list"]:
            self.library.remove(found)
        files = [os.environ["FAKE_STORE_FILE"]] if "FAKE_STORE_FILE" in os.environ else []
        self.send("Removed", request_id=number, files=files, bytes=found["bytes"])

    def MoveModel(self, number: int, request: dict[str, Any]) -> None:
        found = next(item for item in self.library if item["path"] == request["path"])
        found["path"] = f"{request['folder']}/{found['name'].replace('/', '--')}"
        self.ListModels(number, request)

    def VerifyModel(self, number: int, request: dict[str, Any]) -> None:
        found = next(item for item in self.library if item["path"] == request["path"])
        for step in range(1, 200):
            if number in self.cancelled:
                return self.fail(number, "store.stopped", "It was stopped.", "Nothing was changed.")
            self.send("Progress", request_id=number, stage=found["repo"], done=step, total=200)
            time.sleep(0.005)
        return self.ListModels(number, request)

    def Cancel(self, number: int, request: dict[str, Any]) -> None:
        self.cancelled.add(number)

    def ListCatalogue(self, number: int, request: dict[str, Any]) -> None:
        self.send("HubModels", request_id=number, models=CATALOGUE,
                  ground="24.1 GB of memory free, 212 GB on the drive, which reads 6.9 GB/s.")  # fmt: skip

    def SearchHub(self, number: int, request: dict[str, Any]) -> None:
        if self.is_offline(number):
            return
        found = [item for item in FOUND if request["text"].lower() in item["name"].lower()]
        self.send("HubModels", request_id=number, models=found)

    def PlanFor(self, number: int, request: dict[str, Any]) -> None:
        repo = request["repo"]
        if self.is_offline(number):
            return None
        if "Gated" in repo and not request["token"]:
            return self.fail(number, "hub.gated", f"{repo} is given only to those who sign in and accept its terms (401).",
                             f"Accept them at https://huggingface.co/{repo}, then resume.")  # fmt: skip
        if self.plan == "unreadable":
            return self.fail(
                number, "model.bad_json", f"config.json of {repo} holds no JSON object.", "Choose another repository."
            )
        if self.plan == "unsupported":
            judged, limits = verdict("unsupported", "Stoker does not run the architecture glm5_next yet."), None
        else:
            plan, limits = planned(request["wishes"], self.plan, self.has_rates)
            if isinstance(plan, dict) and repo.startswith("/"):
                plan |= {"measured_tokens_per_second": 3.7, "measured_answers": 5}
            judged = self.judged(plan)
        found = model(repo.split("/")[-1], 30.5, 0, release(repo, "BF16", 61.1, judged))
        is_here = repo.startswith("/")
        return self.send("RepoPlan", request_id=number, model=found, num_files=21, limits=limits,
                         download_bytes=0 if is_here else MODEL)  # fmt: skip

    def judged(self, plan: dict[str, Any] | Refusal) -> dict[str, Any]:
        if not isinstance(plan, dict):
            text, hint = plan
            return verdict("no_memory", text) | {"hint": hint}
        if self.plan == "full-disk":
            text = "It takes 61.1 GB and the drive has 40.0 GB free: it needs 21.1 GB more."
            return verdict("no_space", text) | {"plan": plan}
        is_whole = sum(plan["slots_per_layer"]) >= LAYERS * EXPERTS
        return verdict("ram" if is_whole else "disk", RAM if is_whole else DISK) | {
            "plan": plan, "tokens_per_second": plan.get("predicted_tokens_per_second"),
        }  # fmt: skip

    def ProbeMachine(self, number: int, request: dict[str, Any]) -> None:
        if not self.machine:
            return self.send("MachineFacts", request_id=number, machine=MACHINE)
        with open(self.machine, encoding="utf-8") as file:
            return self.send("MachineFacts", **json.loads(file.read()) | {"request_id": number})

    def ReadRates(self, number: int, request: dict[str, Any]) -> None:
        if self.has_rates:
            return self.send("MachineRates", request_id=number, gbps={"ram": 43.2, "disk": 2.7}, drive="/dev/nvme0n1p2",
                             kernels={"BF16": 38.1, "FP8": 31.7, "MXFP4": 24.9, "NVFP4": 23.2, "INT4": 27.4}, seconds=time.time())  # fmt: skip
        return self.send("MachineRates", request_id=number, unknown="this computer has not been measured yet")

    def MeasureMachine(self, number: int, request: dict[str, Any]) -> None:
        for step in range(10_000_000 if self.mode == "bench-slow" else 45):
            if number in self.cancelled:
                return self.fail(number, "store.stopped", "It was stopped.", "Nothing was changed.")
            if step == 20 and self.mode == "bench-dies":
                os._exit(9)
            if step == 20 and self.mode == "bench-fails":
                return self.fail(number, "bench.died", "The measurement crashed (SIGILL).", "Try again.")
            self.send("Progress", request_id=number, stage="Drive, memory and layers", done=min(step, 30), total=45)
            time.sleep(0.02)
        self.has_rates = True
        return self.ReadRates(number, request)

    def ReadCard(self, number: int, request: dict[str, Any]) -> None:
        if not self.is_offline(number):
            self.send("Card", request_id=number, repo=request["repo"], text=CARD)

    def is_offline(self, number: int) -> bool:
        if self.mode == "offline":
            text = "https://huggingface.co gave no answer in 2 attempts: it cannot be reached, perhaps because this computer is not online."
            self.fail(number, "hub.unreachable", text, "Check the connection and try again.")
        return self.mode == "offline"

    def tell_queue(self, number: int) -> None:
        self.send("Downloads", request_id=number, jobs=self.jobs)

    def ListDownloads(self, number: int, request: dict[str, Any]) -> None:
        self.tell_queue(number)

    def LimitDownloads(self, number: int, request: dict[str, Any]) -> None:
        self.rate = request["bytes_per_second"] or self.rate
        self.tell_queue(number)

    def AddDownload(self, number: int, request: dict[str, Any]) -> None:
        found = self.find(request["repo"])
        if "/" not in request["repo"]:
            return self.fail(number, "hub.name", f"{request['repo']!r} is no name of a model on the Hub.", "Write maker/model.")
        if found is None:
            self.jobs.append(job(request["repo"], "waiting", 0, 0.01, folder=request["folder"]))
        else:
            found.update(state="waiting", code="", text="", hint="")
        return self.tell_queue(number)

    def EditDownload(self, number: int, request: dict[str, Any]) -> None:
        found, action = self.find(request["repo"]), request["action"]
        if found is None:
            return self.fail(number, "download.no_job", f"{request['repo']} is not among the downloads.")
        if action in ("pause", "resume"):
            found.update(state="paused" if action == "pause" else "waiting", code="", text="", hint="")
        else:
            self.jobs.remove(found)
            if action == "move":
                self.jobs.insert(request["position"], found)
        return self.tell_queue(number)

    def RunDownloads(self, number: int, request: dict[str, Any]) -> None:
        if self.mode == "crash":
            os._exit(3)
        if self.mode == "scenes":
            running = self.jobs[0] | {"state": "running"}
            self.jobs[0] = running
            self.advance(number, running, 84e6)
            return
        self.rate = request["bytes_per_second"] or self.rate
        while (found := next((item for item in self.jobs if item["state"] == "waiting"), None)) is not None:
            self.work(number, found, request["token"])
        self.tell_queue(number)

    def work(self, number: int, found: dict[str, Any], token: str) -> None:
        if "Gated" in found["repo"] and not token:
            found.update(state="failed", code="hub.gated", text="It is given only to those who sign in (401).", hint="Sign in.")
            return
        while found["state"] == "waiting" and found in self.jobs and found["done_bytes"] < found["total_bytes"]:
            time.sleep(0.05)
            found["done_bytes"] = min(found["total_bytes"], found["done_bytes"] + int(self.rate * 0.05))
            self.advance(number, found | {"state": "running"}, self.rate)
        if found["done_bytes"] >= found["total_bytes"] and found in self.jobs:
            found["state"] = "done"
            self.library.append(entry(found["repo"], "BF16", 0.01))

    def advance(self, number: int, running: dict[str, Any], rate: float) -> None:
        left = (running["total_bytes"] - running["done_bytes"]) / rate
        self.send("DownloadProgress", request_id=number, job=running, file="model-00006-of-00015.safetensors",
                  verified_bytes=int(running["done_bytes"] * 0.9), bytes_per_second=rate, seconds_left=left)  # fmt: skip

    def find(self, repo: str) -> dict[str, Any] | None:
        return next((item for item in self.jobs if item["repo"].lower() == repo.lower()), None)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", nargs="?", default="normal")
    parser.add_argument("--rate", type=float, default=20e6)
    parser.add_argument("--machine", default="")
    parser.add_argument("--plan", default="disk")
    parser.add_argument("--measured", action="store_true")
    options = parser.parse_args()
    return FakeStore(options.mode, options.rate, options.machine, options.plan, options.measured).run()


if __name__ == "__main__":
    sys.exit(main())
