"""Where a model lands: in the Hugging Face cache, so that other tools share it, or in its own folder below a chosen one."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from huggingface_hub import constants

from engine.errors import EngineError
from engine.store.files import RemoteFile, Repository


class Target(Protocol):
    """`root` holds all that is written. Nothing of a model can be loaded from `folder` before `finish`."""

    root: Path
    folder: Path

    def place(self, file: RemoteFile) -> Path:
        """Where a file lies when its checksum is right; it gathers beside it."""

    def prepare(self) -> None:
        """Make the folders. Raises OSError."""

    def finish(self) -> tuple[str, ...]:
        """Make the model appear; the paths of links and refs that were made. Raises OSError."""


def hub_cache() -> Path:
    return Path(constants.HF_HUB_CACHE)


def target_for(folder: str, repository: Repository, revision: str) -> Target:
    return PlainFolder(Path(folder), repository) if folder else HubCache(hub_cache(), repository, revision)


def check_folder(folder: Path) -> Path:
    """A chosen models folder, absolute; it need not exist yet. Raises `EngineError` for what cannot be one."""
    folder = folder.expanduser().absolute()
    if any(len(part.encode()) > 255 for part in folder.parts) or len(str(folder).encode()) > 3800:
        raise EngineError("store.long_path", f"The path {folder} is too long.", "Choose a shorter one.")
    if folder.parent == folder or os.path.ismount(folder):
        raise EngineError("store.drive_root", f"{folder} is a whole drive.", "Choose or make a folder on it.")
    there = existing_parent(folder)
    if not there.is_dir():
        raise EngineError("store.not_a_folder", f"{there} is a file, not a folder.", "Choose a folder.")
    if not os.access(there, os.W_OK | os.X_OK) or _is_read_only(there):
        raise EngineError("store.read_only", f"Nothing can be written in {there}.", "Choose another folder.")
    return folder


def existing_parent(folder: Path) -> Path:
    """The folder itself or the nearest one above it that is there."""
    while not folder.exists() and folder.parent != folder:
        folder = folder.parent
    return folder


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(existing_parent(folder)).free


def _is_read_only(folder: Path) -> bool:
    """Of a whole file system, which `os.access` does not tell root."""
    return hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


@dataclass
class HubCache:
    """`models--maker--name/{blobs,snapshots,refs}` (source: huggingface_hub, "Understand caching")."""

    cache: Path
    repository: Repository
    revision: str

    def __post_init__(self) -> None:
        self.root = self.cache / f"models--{self.repository.repo.replace('/', '--')}"
        self.folder = self.root / "snapshots" / self.repository.commit

    def place(self, file: RemoteFile) -> Path:
        """The blob, named by its checksum; where links are refused the file moves on into the snapshot."""
        digest = file.checksum.partition(":")[2] or f"{self.repository.commit}-{file.name}"
        blob, pointer = self.root / "blobs" / digest, self.folder / file.name
        return pointer if pointer.is_file() and not pointer.is_symlink() and not blob.exists() else blob

    def prepare(self) -> None:
        """Also `snapshots`, without which other tools call the cache damaged."""
        (self.root / "blobs").mkdir(parents=True, exist_ok=True)
        self.folder.parent.mkdir(exist_ok=True)

    def finish(self) -> tuple[str, ...]:
        self.folder.mkdir(parents=True, exist_ok=True)
        made = [str(self.folder / file.name) for file in self.repository.files if self._point(file)]
        if self.revision != self.repository.commit:
            ref = self.root / "refs" / self.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self.repository.commit, encoding="utf-8")
            made.append(str(ref))
        return tuple(made)

    def _point(self, file: RemoteFile) -> bool:
        """Link the snapshot's name to the blob. False: it is there already."""
        place, pointer = self.place(file), self.folder / file.name
        if place == pointer or (pointer.is_symlink() and pointer.resolve() == place.resolve()):
            return False
        pointer.unlink(missing_ok=True)
        try:
            pointer.symlink_to(os.path.relpath(place, pointer.parent))
        except (OSError, NotImplementedError):  # Windows without developer mode, exFAT: as huggingface_hub does
            files = self.repository.files
            if any(other.checksum == file.checksum for other in files[files.index(file) + 1 :]):
                shutil.copy2(place, pointer)  # another name of the same content comes later
            else:
                os.replace(place, pointer)
        return True


@dataclass
class PlainFolder:
    """`maker--name/` below the chosen folder; it gathers in `maker--name.partial/`, which the library passes over."""

    parent: Path
    repository: Repository

    def __post_init__(self) -> None:
        name = self.repository.repo.replace("/", "--")
        self.folder = self.parent / name
        self._working = self.parent / f"{name}.partial"
        self.root = self.folder if self.folder.exists() else self._working

    def place(self, file: RemoteFile) -> Path:
        return self.root / file.name

    def prepare(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    def finish(self) -> tuple[str, ...]:
        if self.root == self._working:
            os.replace(self._working, self.folder)
            self.root = self.folder
        return ()
