"""`stoker probe` and `stoker bench` against independent tools: `python -m tests.perf.probe_check [--model demo]`.

Facts: lscpu, free, the cgroup's own files, findmnt, df. Rates: fio with direct reads of the model's largest file, in blocks of
about an expert, into huge pages as the engine's own; and a C loop that adds up memory with one thread per core. Rates are taken
in rounds, ours between two of the other's, since a computer's memory and drive may change their speed within a minute; the median
of ours is right within 10 % of the median of theirs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.store.library import find_model, models_folder
from engine.store.target import existing_parent
from tests.helpers.host_client import ROOT

# Each thread takes its own times: a third one that waits for them gets a core late, and would see too little of the pass.
_LOOP = r"""
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
enum { MIB = 1 << 20, BYTES = 256 * MIB, PASSES = 25, MOST = 256 };
static pthread_barrier_t start;
static volatile uint64_t sink;
static double begins[PASSES][MOST], ends[PASSES][MOST];
typedef struct { uint64_t *words; int number; } Part;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *add(void *argument) {
  const Part *part = argument;
  const uint64_t *words = part->words;
  for (int pass = 0; pass < PASSES; pass++) {
    pthread_barrier_wait(&start);
    begins[pass][part->number] = now();
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i < BYTES / 8; i += 4) { a += words[i]; b += words[i + 1]; c += words[i + 2]; d += words[i + 3]; }
    sink += a + b + c + d;
    ends[pass][part->number] = now();
  }
  return NULL;
}
int main(int argc, char **argv) {
  int threads = atoi(argv[1]);
  pthread_t running[MOST];
  Part parts[MOST];
  pthread_barrier_init(&start, NULL, threads);
  for (int i = 0; i < threads; i++) {
    uint64_t seed = i + 1;
    parts[i] = (Part){aligned_alloc(2 * MIB, BYTES), i};
    madvise(parts[i].words, BYTES, MADV_HUGEPAGE);
    for (size_t k = 0; k < BYTES / 8; k++) parts[i].words[k] = seed = seed * 6364136223846793005u + 1442695040888963407u;
  }
  for (int i = 0; i < threads; i++) pthread_create(&running[i], NULL, add, &parts[i]);
  for (int i = 0; i < threads; i++) pthread_join(running[i], NULL);
  double seconds[PASSES];
  for (int pass = 0; pass < PASSES; pass++) {
    double begin = begins[pass][0], end = ends[pass][0];
    for (int i = 1; i < threads; i++) {
      if (begins[pass][i] < begin) begin = begins[pass][i];
      if (ends[pass][i] > end) end = ends[pass][i];
    }
    int place = pass;
    for (; place > 0 && seconds[place - 1] > end - begin; place--) seconds[place] = seconds[place - 1];
    seconds[place] = end - begin;
  }
  printf("%f\n", (double)threads * BYTES / seconds[PASSES / 2] / 1e9);
}
"""


@dataclass(frozen=True)
class Row:
    what: str
    ours: float | str | None
    theirs: float | str | None
    allowed: float = 0.0  # relative difference of numbers

    @property
    def is_right(self) -> bool:
        if isinstance(self.ours, (int, float)) and isinstance(self.theirs, (int, float)):
            return abs(self.ours - self.theirs) <= self.allowed * self.theirs
        return self.ours == self.theirs


def facts(folder: Path) -> list[Row]:
    machine = _stoker("probe", "--json", str(folder))
    cpu, (drive,) = machine["cpu"], machine["drives"]
    lscpu = _lscpu()
    memory = _run("free", "--bytes").splitlines()[1].split()
    (mount,) = json.loads(_run("findmnt", "--json", "--bytes", "-o", "SOURCE,FSTYPE,TARGET", "-T", str(folder)))["filesystems"]
    size, free = map(int, _run("df", "-B1", "--output=size,avail", str(folder)).splitlines()[1].split())
    return [
        Row("logical cores (lscpu)", cpu["logical_cores"], int(lscpu["CPU(s)"])),
        Row("physical cores (lscpu)", cpu["physical_cores"], int(lscpu["Socket(s)"]) * int(lscpu["Core(s) per socket"])),
        Row("processor (lscpu)", cpu["name"], lscpu["Model name"]),
        Row("memory nodes (lscpu)", cpu["numa_nodes"], int(lscpu["NUMA node(s)"])),
        Row("memory in all (free)", machine["ram_total"], int(memory[1])),
        Row("memory available (free)", machine["ram_available"], min(int(memory[6]), _cgroup_limit() or int(memory[6])), 0.03),
        Row("memory limit (cgroup)", machine["ram_limit"], _cgroup_limit()),
        Row("device (findmnt)", drive["device"], mount["source"]),
        Row("mounted at (findmnt)", drive["mount"], mount["target"]),
        Row("file system (findmnt)", drive["filesystem"], mount["fstype"]),
        Row("drive in all (df)", drive["total_bytes"], size),
        Row("drive free (df)", drive["free_bytes"], free, 0.02),
    ]


def rates(model: str, rounds: int) -> list[Row]:
    folder = find_model(model, models_folder())
    largest = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    with tempfile.TemporaryDirectory() as work:
        program = _compile(Path(work))
        threads = str(_stoker("probe", "--json", str(folder))["cpu"]["physical_cores"])
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []

        def measure_theirs() -> None:
            theirs.append((float(_run(str(program), threads)), _fio(largest)))

        measure_theirs()
        for _ in range(rounds):
            found = _stoker("bench", model, "--json")["rates"]
            ours.append((found["ram_gbps"], found["disk_gbps"]))
            measure_theirs()
    print(f"ours {ours}, theirs {theirs}")
    return [_rate_row("RAM, GB/s (C loop)", ours, theirs, 0), _rate_row("drive, GB/s (fio)", ours, theirs, 1)]


def _rate_row(what: str, ours: list[tuple[float, float]], theirs: list[tuple[float, float]], which: int) -> Row:
    mine, others = [pair[which] for pair in ours], [pair[which] for pair in theirs]
    return Row(what, statistics.median(mine), statistics.median(others), 0.1)


def _compile(folder: Path) -> Path:
    source, program = folder / "loop.c", folder / "loop"
    source.write_text(_LOOP)
    _run("cc", "-O3", "-march=native", "-pthread", "-o", str(program), str(source))
    return program


def _fio(file: Path) -> float:
    """GB/s. Blocks of 4 MiB, eight in flight, as glibc's malloc gives them in huge pages: small ones halve some machines' rate."""
    command = [
        "fio", "--name=reads", f"--filename={file}", "--readonly", "--direct=1", "--rw=randread", "--bs=4m", "--iodepth=8",
        "--ioengine=libaio", "--mem=malloc", "--runtime=4", "--time_based", "--output-format=json",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    )
    (job,) = json.loads(done.stdout)["jobs"]
    return float(job["read"]["bw_bytes"]) / 1e9


def _cgroup_limit() -> int | None:
    """By the files themselves, of this process's cgroup alone."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        name = {"": "memory.max", "memory": "memory/{}/memory.limit_in_bytes"}.get(controllers)
        file = Path("/sys/fs/cgroup") / (name.format(path.strip("/")) if name and "{}" in name else f"{path.strip('/')}/{name}")
        if name and file.exists() and (text := file.read_text().strip()).isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _lscpu() -> dict[str, str]:
    told: dict[str, str] = {}

    def walk(fields: list[dict[str, Any]]) -> None:
        for entry in fields:
            told[entry["field"].rstrip(":")] = str(entry["data"])
            walk(entry.get("children", []))

    walk(json.loads(_run("lscpu", "--json"))["lscpu"])
    return told


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _stoker(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "engine", *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-facts", action="store_true")
    options = parser.parse_args()
    found = facts(existing_parent(models_folder())) + ([] if options.only_facts else rates(options.model, options.rounds))
    for row in found:
        print(f"{'right' if row.is_right else 'WRONG':6} {row.what:28} {row.ours!s:>24} {row.theirs!s:>24}")
    return 0 if all(row.is_right for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
