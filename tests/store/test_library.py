"""Models found, kept in mind while their drive is away, verified, removed and moved; nothing of other people's is touched."""

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.protocol import ModelEntry, ModelState
from engine.store.download import Order
from engine.store.jobs import Jobs
from engine.store.library import add_folder, find_model, list_models
from engine.store.moves import move
from engine.store.records import Records
from engine.store.remove import files_of, record_for, remove
from engine.store.target import check_folder
from engine.store.verify import verify
from tests.helpers.host_client import ROOT
from tests.helpers.tiny import write_mixtral
from tests.hub import faults
from tests.hub.server import FakeHub
from tests.store.conftest import line_to, model_files
from tests.store.steps import REPO, SECOND, SHARD, Pull, assert_same, sent_for

SUPPORTED = frozenset({"mixtral"})


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | Path]:
    folder = write_mixtral(tmp_path_factory.mktemp("tiny"))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def listed(computer: Path) -> dict[str, ModelEntry]:
    return {entry.name: entry for entry in list_models(computer / "data" / "models", SUPPORTED)}


def test_a_downloaded_model_is_listed_with_what_is_known_of_it(
    hub: FakeHub, computer: Path, tiny_files: dict[str, bytes | Path]
) -> None:
    hub.add("maker/Tiny", tiny_files, licence="mit")
    folder = Pull(line_to(hub), computer / "data", Order("maker/Tiny")).run()
    entry = listed(computer)["maker/Tiny"]
    assert (entry.problem, entry.architecture, entry.weight_format) == ("", "mixtral", "F32")
    assert (entry.licence, entry.state, entry.is_ours, entry.path) == ("mit", ModelState.WHOLE, True, str(folder))
    assert find_model("maker/Tiny", computer / "data" / "models") == folder
    assert find_model("tiny", computer / "data" / "models") == folder
    Records(computer / "data").note_used(folder)
    assert listed(computer)["maker/Tiny"].last_used > 1.6e9


def test_a_half_model_is_not_offered(hub: FakeHub, pull: Pull, computer: Path) -> None:
    hub.always(SECOND, faults.Slow(3e6))
    pull.run_until(4_000_000)
    assert listed(computer)[REPO].state is ModelState.ARRIVING
    assert listed(computer)[REPO].problem


def test_a_flipped_byte_is_found_and_that_file_alone_is_brought_again(hub: FakeHub, pull: Pull, computer: Path) -> None:
    folder = pull.run()
    blob = (folder / SECOND).resolve()
    stat, content = blob.stat(), bytearray(blob.read_bytes())
    content[1000] ^= 1
    blob.write_bytes(content)
    os.utime(blob, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a drive that rots does
    records = Records(computer / "data")
    assert verify(records, record_for(records, REPO), lambda *_: None, lambda: False) == (str(blob),)
    assert listed(computer)[REPO].state is ModelState.DAMAGED
    assert listed(computer)[REPO].problem
    assert_same(pull.run(), hub.repos[REPO])
    assert (sent_for(hub, SHARD), sent_for(hub, SECOND)) == (1, 2)
    assert listed(computer)[REPO].state is ModelState.WHOLE


def test_removing_takes_what_stoker_brought_and_no_more(hub: FakeHub, pull: Pull, computer: Path) -> None:
    root = computer / "hf" / "hub" / "models--maker--Model-8x1"
    content = hub.repos[REPO].files[SHARD]
    assert isinstance(content, bytes)
    theirs = root / "blobs" / sha256(content).hexdigest()
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(content)
    other = root / "snapshots" / "0123" / "notes.txt"
    other.parent.mkdir(parents=True)
    other.write_text("a person's")
    pull.run()
    records = Records(computer / "data")
    record = record_for(records, REPO.lower())
    planned, nbytes = files_of(records, record)
    assert all(path.exists() for path in planned), "asking deletes nothing"
    assert nbytes == 6_021_361 - 2 - 3_001_234 + 40, "the ref too"
    assert remove(records, record) == (planned, nbytes)
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == {f"blobs/{theirs.name}", "snapshots/0123/notes.txt"}
    assert not records.all()


def test_two_revisions_share_a_file_until_the_last_is_removed(hub: FakeHub, pull: Pull, computer: Path) -> None:
    pull.run()
    first = hub.repos[REPO].commit
    now = hub.add(REPO, model_files() | {"config.json": b'{"model_type": "other"}'})
    folder = pull.run()
    records = Records(computer / "data")
    old = next(record for record in records.of_repo(REPO) if record.commit == first)
    remove(records, old)
    assert_same(folder, now)
    assert (folder.parents[1] / "refs" / "main").read_text() == now.commit
    remove(records, record_for(records, REPO))
    assert not (computer / "hf" / "hub" / "models--maker--Model-8x1").exists()


def test_a_model_of_somebody_else_is_not_removed(computer: Path) -> None:
    write_mixtral(computer / "data" / "models" / "mine")
    with pytest.raises(EngineError) as caught:
        record_for(Records(computer / "data"), "mine")
    assert caught.value.code == "store.not_ours"


def test_moving_copies_compares_and_deletes(hub: FakeHub, pull: Pull, computer: Path) -> None:
    pull.run()
    records = Records(computer / "data")
    goal = move(records, record_for(records, REPO), computer / "big drive", lambda *_: None, lambda: False)
    assert_same(goal, hub.repos[REPO])
    assert not (computer / "hf" / "hub" / "models--maker--Model-8x1").exists()
    again = move(records, record_for(records, REPO), computer / "other", lambda *_: None, lambda: False)
    assert_same(again, hub.repos[REPO])
    assert not goal.exists()
    assert Path(listed(computer)[REPO].path) == again


def test_a_move_that_fails_leaves_the_first_copy(hub: FakeHub, pull: Pull, computer: Path) -> None:
    folder = pull.run()
    records = Records(computer / "data")
    blob = (folder / SHARD).resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(EngineError, match="not the same"):
        move(records, record_for(records, REPO), computer / "new", lambda *_: None, lambda: False)
    assert blob.exists()
    assert list((computer / "new").iterdir()) == []
    (computer / "new" / "maker--Model-8x1").mkdir()
    with pytest.raises(EngineError, match="there already"):
        move(records, record_for(records, REPO), computer / "new", lambda *_: None, lambda: False)


_KILLED = """
import os, sys
from pathlib import Path
import huggingface_hub.constants
import engine.store.moves as moves
from engine.store.records import Records
from engine.store.remove import record_for

moment, data, cache, goal = sys.argv[1:]
huggingface_hub.constants.HF_HUB_CACHE = cache
replace, progress = os.replace, lambda *_: None

def replace_or_end(source, target):
    os._exit(9) if str(source).endswith(".partial") else replace(source, target)

def end_half_way(records, record):
    Path(record.pointers[0]).unlink()
    os._exit(9)

if moment == "copying":
    progress = lambda *_: os._exit(9)
elif moment == "copied":
    os.replace = replace_or_end
elif moment == "named":
    moves.remove = lambda *_: os._exit(9)
else:
    moves.remove = end_half_way
records = Records(Path(data))
moves.move(records, record_for(records, "maker/Model-8x1"), Path(goal), progress, lambda: False)
"""


@pytest.mark.parametrize("moment", ["copying", "copied", "named", "half deleted"])
def test_a_move_that_was_killed_is_undone_or_finished_when_the_library_is_looked_at(
    hub: FakeHub, pull: Pull, computer: Path, moment: str
) -> None:
    old = pull.run()
    records = Records(computer / "data")
    new, working = computer / "new" / "maker--Model-8x1", computer / "new" / "maker--Model-8x1.partial"
    arguments = [moment, str(computer / "data"), str(computer / "hf" / "hub"), str(new.parent)]
    ended = subprocess.run([sys.executable, "-c", _KILLED, *arguments], cwd=ROOT, timeout=120)
    assert ended.returncode == 9
    assert working.exists() == (moment in ("copying", "copied"))
    (new.parent / "other.txt").write_text("somebody's")
    if moment == "copying":
        (working / "notes.txt").write_text("somebody's too")
        assert Path(listed(computer)[REPO].path) == old
        assert_same(old, hub.repos[REPO])
        assert [path.name for path in working.iterdir()] == ["notes.txt"], "what is not of the move stays"
        (working / "notes.txt").unlink()
        listed(computer)
        assert not working.exists()
        assert records.moves() == []
        move(records, record_for(records, REPO), new.parent, lambda *_: None, lambda: False)
    assert Path(listed(computer)[REPO].path) == new
    assert_same(new, hub.repos[REPO])
    assert not old.exists()
    assert not working.exists()
    assert records.moves() == []
    assert (new.parent / "other.txt").exists()


def test_a_move_that_runs_now_is_left_alone(hub: FakeHub, pull: Pull, computer: Path) -> None:
    pull.run()
    records = Records(computer / "data")
    seen: list[list[str]] = []

    def look(*_: int) -> None:
        listed(computer)
        seen.append([path.name for path in (computer / "new").iterdir()])

    with Jobs(computer / "data").held(REPO):
        goal = move(records, record_for(records, REPO), computer / "new", look, lambda: False)
    assert seen[0] == ["maker--Model-8x1.partial"]
    assert_same(goal, hub.repos[REPO])


def test_a_drive_that_is_away_keeps_its_models_in_the_list(
    hub: FakeHub, computer: Path, tiny_files: dict[str, bytes | Path]
) -> None:
    hub.add("maker/Tiny", tiny_files)
    drive = computer / "drive"
    drive.mkdir()
    Pull(line_to(hub), computer / "data", Order("maker/Tiny", folder=str(drive / "models"))).run()
    write_mixtral(drive / "models" / "other" / "byhand")
    write_mixtral(drive / "single")
    write_mixtral(computer / "data" / "models" / "own")
    add_folder(drive / "single", Records(computer / "data"))
    before = listed(computer)
    assert set(before) == {"maker/Tiny", "byhand", "single", "own"}
    drive.rename(computer / "unplugged")
    away = listed(computer)
    assert set(away) == set(before)
    assert {name for name, entry in away.items() if entry.state is ModelState.AWAY} == {"maker/Tiny", "byhand", "single"}
    assert str(drive) in away["byhand"].problem
    assert away["own"].problem == ""
    assert set(listed(computer)) == set(before), "also when asked twice"
    (computer / "unplugged").rename(drive)
    assert listed(computer) == before
    shutil.rmtree(drive / "models" / "other")
    assert set(listed(computer)) == {"maker/Tiny", "single", "own"}, "what is deleted while its drive is there is gone"
    Records(computer / "data").forget_folder(drive / "single")
    assert set(listed(computer)) == {"maker/Tiny", "own"}
    assert (drive / "single" / "config.json").exists()


def test_a_cache_given_as_a_folder_and_folders_full_of_other_things(computer: Path) -> None:
    """As people give them: the root of a cache on another drive, a home folder."""
    home = computer / "home"
    snapshot = home / "models--maker--Tiny" / "snapshots" / "abc"
    write_mixtral(snapshot)
    (home / "models--maker--Broken" / "blobs").mkdir(parents=True)
    (home / "Photos" / "2024").mkdir(parents=True)
    (home / "letter.txt").write_text("")
    (home / "half.partial").mkdir()
    add_folder(home, Records(computer / "data"))
    assert {name: entry.path for name, entry in listed(computer).items()} == {"maker/Tiny": str(snapshot)}


def test_a_bad_folder_says_what_is_missing(computer: Path) -> None:
    records = Records(computer / "data")
    folder = write_mixtral(computer / "cut")
    (folder / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"no \.safetensors file"):
        add_folder(folder, records)
    for bad, code in ((computer / "nowhere", "store.not_a_folder"), (Path("/"), "store.drive_root")):
        with pytest.raises(EngineError) as caught:
            add_folder(bad, records)
        assert caught.value.code == code
    assert not records.folders()
    assert not records.added()


def test_places_that_cannot_take_models(computer: Path) -> None:
    (computer / "file").write_text("")
    for bad, code in (
        (Path("/"), "store.drive_root"),
        (computer / "file", "store.not_a_folder"),
        (computer / "file" / "below", "store.not_a_folder"),
        (computer / ("x" * 256), "store.long_path"),
    ):
        with pytest.raises(EngineError) as caught:
            check_folder(bad)
        assert caught.value.code == code
    assert [path.name for path in sorted(computer.iterdir())] == ["file"], "looking makes nothing"


def test_a_folder_with_the_models_name_that_stoker_did_not_make(hub: FakeHub, line_folder: Pull, computer: Path) -> None:
    foreign = computer / "chosen" / "maker--Model-8x1" / "thesis.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("years of work")
    with pytest.raises(EngineError) as caught:
        line_folder.run()
    assert caught.value.code == "download.taken"
    assert [path.name for path in foreign.parent.iterdir()] == ["thesis.txt"]
    assert [path.name for path in foreign.parents[1].iterdir()] == ["maker--Model-8x1"]


@pytest.fixture
def line_folder(hub: FakeHub, computer: Path) -> Pull:
    return Pull(line_to(hub), computer / "data", Order(REPO, folder=str(computer / "chosen")))


@pytest.mark.parametrize(
    "name", ["with space", "Gábor", "田中　太郎", "Мои модели", "100%", "%41", "a" * 200 + "/" + "b" * 200]
)
def test_paths_of_every_kind(hub: FakeHub, computer: Path, name: str) -> None:
    place = computer / name
    folder = Pull(line_to(hub), computer / "data", Order(REPO, folder=str(place))).run()
    assert folder == place / "maker--Model-8x1"
    assert_same(folder, hub.repos[REPO])
    assert [path.name for path in place.iterdir()] == ["maker--Model-8x1"]


def test_a_folder_of_ones_choice_goes_on_after_a_pause_and_is_the_same_in_the_end(
    hub: FakeHub, line_folder: Pull, computer: Path
) -> None:
    (computer / "chosen").mkdir()
    (computer / "chosen" / "thesis.txt").write_text("years of work")
    hub.script(SECOND, faults.Slow(3e6))
    line_folder.run_until(4_000_000)
    assert not (computer / "chosen" / "maker--Model-8x1").exists()
    before = hub.sent_bytes
    folder = line_folder.run()
    assert hub.sent_bytes - before < 2_300_000
    assert_same(folder, hub.repos[REPO])
    assert sorted(path.name for path in (computer / "chosen").iterdir()) == ["maker--Model-8x1", "thesis.txt"]
    before = hub.sent_bytes
    line_folder.run()
    assert hub.sent_bytes - before < 1000, "a second time only the index is read"


def test_where_links_are_refused_files_move_into_the_snapshot(
    hub: FakeHub, pull: Pull, computer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("links are not allowed here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    folder = pull.run()
    assert_same(folder, hub.repos[REPO], None)
    before = hub.sent_bytes
    pull.run()
    assert hub.sent_bytes - before < 1000
    records = Records(computer / "data")
    remove(records, record_for(records, REPO))
    assert not folder.exists()
