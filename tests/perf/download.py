"""A download against curl, from the same server on loopback to the same drive: `python -m tests.perf.download --gb 5 --rounds 3`.

The server is a process of its own. "past the hash" is the processor time of `stoker pull` less that of starting it, and less that
of hashing the file while curl runs beside it: on threads that share a core everything takes longer when both are busy. curl does
not hash; it is measured to a file, with the time until it is on the drive, and to nowhere.
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.host_client import ROOT
from tests.hub.__main__ import FILE, REPO
from tests.store.test_kills import large_file


@dataclass(frozen=True)
class Used:
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measure(command: list[str], environment: dict[str, str]) -> Used:
    begun = time.perf_counter()
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    peak, pid = 0, 0
    while not pid:
        peak = max(peak, _peak_bytes(process.pid))
        time.sleep(0.01)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Used(time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, peak)


def _peak_bytes(pid: int) -> int:
    """Of the program itself; what the kernel tells at its end counts the process that started it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def hash_cpu_seconds(path: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF)
    with path.open("rb") as stream:
        digest, buffer = hashlib.sha256(), bytearray(1 << 20)
        read = 0.0
        while True:
            begun = time.process_time()
            count = stream.readinto(buffer)
            read += time.process_time() - begun
            if not count:
                break
            digest.update(memoryview(buffer)[:count])
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - read


def cached_bytes(path: Path) -> int:
    found = subprocess.run(["fincore", "-b", "-n", "-o", "RES", str(path)], capture_output=True, text=True)
    return int(found.stdout.strip() or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the drive to measure")
    parser.add_argument("--beside", metavar="MODEL", help="instead: how much slower this model writes while a download runs")
    parser.add_argument("--limit", default="50MB", help="of the download beside a model, per second (50MB)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, served(Path(folder), int(options.gb * 1e9)) as hub:
        if options.beside:
            run_beside(hub, options.beside, options.limit, options.rounds)
        else:
            run(hub, options.rounds)


@dataclass(frozen=True)
class Hub:
    """A server process with one large file, and a computer's folders for whoever downloads from it."""

    process: "subprocess.Popen[str]"
    url: str
    source: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "HF_ENDPOINT": self.url.split(f"/{REPO}")[0], "HF_HUB_OFFLINE": "0", "HF_HOME": str(self.home / "hf"),
            "XDG_DATA_HOME": str(self.home / "share"),
        }  # fmt: skip

    def sent(self) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def served(folder: Path, size: int) -> Iterator[Hub]:
    source = folder / "source"
    digest = large_file(source, size, 1)
    command = [sys.executable, "-m", "tests.hub", str(source), digest]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield Hub(process, process.stdout.readline().strip(), source, folder / "home")
        process.stdin.close()


def run_beside(hub: Hub, model: str, limit: str, rounds: int) -> None:
    """Alone, beside a download, alone and so on, the same greedy answer each time.

    The server stands for a line and its far end, which take no processor here, and steps back as far as it can.
    """
    os.setpriority(os.PRIO_PROCESS, hub.process.pid, 19)
    stoker = [sys.executable, "-m", "engine"]
    chat = [
        *stoker,
        "chat",
        "--model",
        model,
        "--json",
        "--greedy",
        "--max-tokens",
        "150",
        "--expert-ram",
        "50%",
        "Tell me a story.",
    ]
    found: dict[bool, list[float]] = {False: [], True: []}
    for is_beside in [False, True] * rounds:
        pulling = subprocess.Popen(
            [*stoker, "pull", REPO, "--json", "--limit", limit], cwd=ROOT, env=hub.environment, stdout=subprocess.DEVNULL
        ) if is_beside else None  # fmt: skip
        answer = json.loads(subprocess.run(chat, cwd=ROOT, capture_output=True, check=True).stdout)
        seconds = [record["seconds"] for record in answer["traffic"] if record["phase"] == "decode"]
        found[is_beside].append(len(seconds) / sum(seconds))
        if pulling is not None:
            assert pulling.poll() is None, "the download ended before the answer: make the file larger"
            pulling.kill()
            pulling.wait()
    alone, beside = (statistics.median(found[key]) for key in (False, True))
    print(
        f"{model}: {alone:.2f} tokens/s alone, {beside:.2f} beside a download of {limit}/s ({beside / alone - 1:+.1%}); {found}"
    )


def run(hub: Hub, rounds: int) -> None:
    source, home, url, environment, folder = hub.source, hub.home, hub.url, hub.environment, hub.home.parent
    size = source.stat().st_size
    alone = hash_cpu_seconds(source) / size * 1e9
    beside = subprocess.Popen(["sh", "-c", f"while curl -sfL -o /dev/null {url}; do :; done"])
    hashing = hash_cpu_seconds(source) / size * 1e9
    beside.kill()
    beside.wait()
    pull = [sys.executable, "-m", "engine", "pull", REPO, "--json"]
    rows: dict[str, list[Used]] = {"curl to nowhere": [], "curl to a file": [], "stoker pull": [], "at 300 MB/s": []}
    remove = [sys.executable, "-m", "engine", "rm", REPO, "--yes"]
    starts: list[Used] = []
    extra = 0
    for _ in range(rounds):
        rows["curl to nowhere"].append(measure(["curl", "-sfL", "-o", "/dev/null", url], environment))
        target = folder / "curl"
        rows["curl to a file"].append(measure(["sh", "-c", f"curl -sfL -o {target} {url} && sync {target}"], environment))
        target.unlink()
        before = hub.sent()
        rows["stoker pull"].append(measure(pull, environment))
        extra = max(extra, hub.sent() - before - size)
        (arrived,) = (path for path in (home / "hf").rglob("snapshots/*/*") if path.name == FILE)
        cached = cached_bytes(arrived.resolve())
        starts.append(measure(pull, environment))  # all of it is there: what starting and asking costs
        measure(remove, environment)
        rows["at 300 MB/s"].append(measure([*pull, "--limit", "300MB"], environment))
        measure(remove, environment)
    start = statistics.median(used.seconds for used in starts)
    start_cpu = statistics.median(used.cpu_seconds for used in starts)
    print(
        f"{size / 1e9:.1f} GB; starting `stoker pull` takes {start:.2f} s; hashing {hashing:.2f} s of a core per GB, {alone:.2f} alone"
    )
    for name, found in rows.items():
        own = 0.0 if "curl" in name else start
        rate = statistics.median(size / (used.seconds - own) / 1e9 for used in found)
        cpu = statistics.median((used.cpu_seconds - (start_cpu if own else 0)) / size * 1e9 for used in found)
        past = f", {cpu - (alone if '300' in name else hashing):.2f} past the hash" if own else ""
        peak = max(used.peak_bytes for used in found) / 1e6
        print(f"{name:16} {rate:5.2f} GB/s  {cpu:.2f} s of a core per GB{past}  peak {peak:.0f} MB")
    print(f"bytes beyond the file: {extra}; of the arrived file in the page cache: {cached / size:.1%}")


if __name__ == "__main__":
    main()
