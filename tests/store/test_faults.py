"""Everything that servers and networks do wrong to a download, over real HTTP, each with the right end."""

import os
import time
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from huggingface_hub import scan_cache_dir, try_to_load_from_cache

from engine.errors import EngineError
from engine.store.download import Order
from tests.hub import faults
from tests.hub.faults import Fault
from tests.hub.server import FakeHub
from tests.store.conftest import line_to, model_files
from tests.store.steps import NEEDED, REPO, SECOND, SHARD, Pull, assert_same, leftovers, sent_for


def test_the_files_of_a_model_and_no_others(hub: FakeHub, pull: Pull) -> None:
    folder = pull.run()
    assert_same(folder, hub.repos[REPO])
    assert leftovers(folder.parents[1]) == []
    asked = {seen.path.rpartition("/")[2].partition("?")[0] for seen in hub.seen if "/resolve/" in seen.path}
    assert asked == NEEDED - {"tokenizer_config.json"}, "its content is that of another file: one blob for both"


def test_other_tools_find_it_in_the_cache(hub: FakeHub, pull: Pull, computer: Path) -> None:
    folder = pull.run()
    cache = scan_cache_dir(computer / "hf" / "hub")
    assert not cache.warnings
    (repo,) = cache.repos
    (revision,) = repo.revisions
    assert (repo.repo_id, revision.commit_hash, set(revision.refs)) == (REPO, hub.repos[REPO].commit, {"main"})
    contents = {content for name in NEEDED if isinstance(content := hub.repos[REPO].files[name], bytes)}
    assert repo.size_on_disk == sum(map(len, contents)), "two files of the same content are one blob"
    assert try_to_load_from_cache(REPO, SHARD, computer / "hf" / "hub") == str(folder / SHARD)


def test_what_another_tool_left_in_the_cache_is_compared_and_not_brought_again(
    hub: FakeHub, pull: Pull, computer: Path
) -> None:
    content = hub.repos[REPO].files
    blobs = computer / "hf" / "hub" / "models--maker--Model-8x1" / "blobs"
    blobs.mkdir(parents=True)

    first, second = content[SHARD], content[SECOND]
    assert isinstance(first, bytes)
    assert isinstance(second, bytes)
    (blobs / sha256(first).hexdigest()).write_bytes(first)
    (blobs / sha256(second).hexdigest()).write_bytes(second[:-1] + b"?")  # another tool called this complete
    assert_same(pull.run(), hub.repos[REPO])
    assert (sent_for(hub, SHARD), sent_for(hub, SECOND)) == (0, 1)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (faults.Reset(2_000_000), "connection"),
        (faults.Cut(1_500_001), "ended early"),
        (faults.Stall(1_200_000), "nothing came for"),
        (faults.Stall(0), "nothing came for"),
        (faults.Drip(), "nothing came for"),
        (faults.Status(503), "in trouble (503)"),
        (faults.Status(429, {"Retry-After": "1"}), "too many requests from here (429); trying again in 1 s"),
        (faults.Status(416, {"Content-Range": "bytes */12"}), "another size"),
        (faults.Page(), "a web page came in place of the file"),
        (faults.Status(403), "storage server refused"),
    ],
    ids=lambda value: "" if isinstance(value, str) else repr(value).split(",")[0].rstrip(")"),
)
def test_short_trouble_is_told_and_waited_out(hub: FakeHub, pull: Pull, fault: Fault, told: str) -> None:
    hub.script(SHARD, fault, fault)
    assert_same(pull.run(), hub.repos[REPO])
    if not isinstance(fault, faults.Status) or fault.code != 403:  # an expired link is renewed without a word
        assert told in pull.troubles
    # The second attempt went on where the first had ended; a reset takes with it what had come and was not read yet.
    assert hub.sent_bytes < (2 if isinstance(fault, faults.Reset) else 1.5) * 6_021_457


@pytest.mark.parametrize("after", [100_000, 1_000_000, 2_999_999])
def test_a_broken_connection_goes_on_from_its_last_block(hub: FakeHub, pull: Pull, after: int) -> None:
    hub.script(SHARD, faults.Cut(after))
    pull.run()
    again = hub.requests_for(SHARD)[1]
    first = int(again.headers["Range"].removeprefix("bytes=").partition("-")[0])
    assert after - 300_000 <= first <= after
    assert again.headers["If-Range"].startswith('"')


def test_a_server_that_stays_ill_is_given_up_with_its_reason(hub: FakeHub, pull: Pull) -> None:
    hub.always(SHARD, faults.Page())
    with pytest.raises(EngineError) as caught:
        pull.run()
    assert caught.value.code == "download.gave_up"
    assert "web page" in caught.value.text
    hub.always(SHARD, faults.Status(200))  # a body of two bytes
    with pytest.raises(EngineError, match="2 bytes of it where the Hub lists 3001234"):
        pull.run()


def test_one_flipped_bit_brings_that_file_once_more_and_no_other(hub: FakeHub, pull: Pull) -> None:
    hub.script(SECOND, faults.Flipped(1_234_567))
    assert_same(pull.run(), hub.repos[REPO])
    assert (sent_for(hub, SHARD), sent_for(hub, SECOND)) == (1, 2)


def test_a_file_that_is_always_wrong_is_refused(hub: FakeHub, pull: Pull, computer: Path) -> None:
    hub.always("tokenizer.json", faults.Flipped(5))
    with pytest.raises(EngineError) as caught:
        pull.run()
    assert caught.value.code == "download.corrupt"
    assert not list(computer.rglob("snapshots/*/*")), "nothing of it may be loaded"


def test_another_content_under_the_same_name_is_not_joined_to_the_first(hub: FakeHub, pull: Pull) -> None:
    right = hub.repos[REPO].files[SHARD]
    assert isinstance(right, bytes)
    wrong = Random(9).randbytes(len(right))
    hub.script(SHARD, faults.Cut(1_500_000), faults.Other(wrong, '"other"'))
    assert_same(pull.run(), hub.repos[REPO])
    ranges = [seen.headers["Range"] for seen in hub.requests_for(SHARD)]
    assert ranges[2].startswith("bytes=0-"), "after the other content it begins anew"


def test_etags_that_differ_each_time_end_with_the_right_file(hub: FakeHub, pull: Pull) -> None:
    right = hub.repos[REPO].files[SHARD]
    assert isinstance(right, bytes)
    hub.script(SHARD, faults.Cut(1_500_000), *(faults.Other(right, f'"{number}"') for number in range(6)))
    assert_same(pull.run(), hub.repos[REPO])


def test_without_etags(hub: FakeHub, pull: Pull) -> None:
    hub.has_etags = False
    hub.script(SHARD, faults.Cut(1_500_000))
    assert_same(pull.run(), hub.repos[REPO])
    assert "If-Range" not in hub.requests_for(SHARD)[1].headers


def test_a_server_without_ranges(hub: FakeHub, pull: Pull) -> None:
    hub.always(SHARD, faults.Whole())
    pull.run_until(2_000_000)
    assert_same(pull.run(), hub.repos[REPO])


def test_a_revision_that_changes_in_mid_download_does_not_mix(hub: FakeHub, pull: Pull) -> None:
    before = hub.repos[REPO]
    hub.script(SHARD, faults.Slow(5e6))
    pull.run_until(2_000_000)
    commit = pull.reports[-1].commit
    hub.add(REPO, model_files() | {SHARD: b"x" * 3_001_234, SECOND: b"y" * 3_000_000})
    pinned = Pull(pull.line, pull.data, Order(REPO, commit=commit))
    folder = pinned.run()
    assert folder.name == before.commit
    assert_same(folder, before)


def test_a_pinned_commit_that_is_gone_gives_way_to_the_present_one(hub: FakeHub, pull: Pull) -> None:
    hub.always(SECOND, faults.Slow(5e6))
    pull.run_until(4_000_000)
    del hub.repos[REPO]
    files = model_files() | {"config.json": b"{}"}
    now = hub.add(REPO, files)
    folder = Pull(pull.line, pull.data, Order(REPO, commit="0" * 40)).run()
    assert folder.name == now.commit
    assert_same(folder, now)
    assert sent_for(hub, SHARD) <= 2, "what both have in common is kept"


def test_the_api_in_trouble(hub: FakeHub, pull: Pull) -> None:
    hub.api_faults.extend([(503, {}), (429, {"Retry-After": "0"}), (200, {"Content-Type": "text/html"})])
    assert_same(pull.run(), hub.repos[REPO])
    hub.api_faults.extend([(502, {})] * 20)
    with pytest.raises(EngineError) as caught:
        pull.run()
    assert caught.value.code == "hub.unreachable"


def test_parallel_ranges_of_a_slow_server(hub: FakeHub, computer: Path) -> None:
    """Four slow connections share a file of several segments, and pieces that come out of order are hashed from the drive."""
    big = os.urandom(150 << 20)
    hub.add("maker/Big", {"config.json": b"{}", "model.safetensors": big})
    hub.always("model.safetensors", faults.Slow(60e6))
    folder = Pull(line_to(hub), computer / "data", Order("maker/Big")).run()
    assert (folder / "model.safetensors").read_bytes() == big
    firsts = [int(seen.headers["Range"][6:].partition("-")[0]) for seen in hub.requests_for("model.safetensors")]
    assert sorted(firsts) == [0, 64 << 20, 128 << 20]
    assert hub.sent_bytes < 1.01 * len(big)


def test_the_limit_is_kept(hub: FakeHub, computer: Path) -> None:
    begun = time.monotonic()
    Pull(line_to(hub, limit=4_000_000), computer / "data").run()
    assert time.monotonic() - begun > 6_021_361 / 4_000_000 - 0.5
