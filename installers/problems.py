"""What can go wrong in a set-up, in words for a person: one sentence with its numbers, and the next step."""

import re
from pathlib import Path


class SetupError(Exception):
    """Ends the set-up with an explanation; never shown as a traceback."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.text}\n{self.hint}"


class DiskFullError(SetupError):
    pass


class NotFoundError(SetupError):
    """The package sources answered and do not have it, or did not answer."""


_NO_SPACE = re.compile(r"no space left on device|\[errno 28\]|not enough space on the disk|disk quota exceeded", re.IGNORECASE)
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|getaddrinfo failed|Network is unreachable"
    r"|ConnectTimeoutError|ReadTimeoutError|Read timed out|Connection refused|Connection reset|RemoteDisconnected|ProxyError"
    r"|SSLError|Max retries exceeded|IncompleteRead|IncompleteDownload|ProtocolError|No route to host"
)
_NOT_ALLOWED = re.compile(r"permission denied|\[errno 13\]|\[errno 30\]|read-only file system", re.IGNORECASE)
_NO_MATCH = re.compile(r"No matching distribution found for (\S+)")


def explain_pip(output: str, log: Path) -> SetupError:
    """The problem behind pip's output."""
    more = f"The whole log is in {log}."
    if _NO_SPACE.search(output):
        return DiskFullError("The disk filled up while packages were installed.", f"Free some space and start again. {more}")
    if _NO_NETWORK.search(output):
        text = "The package index could not be reached. The first start needs the network to fetch packages."
        return NotFoundError(text, f"Check the connection (or proxy) and start again; what was fetched is kept. {more}")
    if _NOT_ALLOWED.search(output):
        return SetupError("pip was not allowed to write its files.", f"Check who owns this folder. {more}")
    if match := _NO_MATCH.search(output):
        text = f"No configured package source has {match[1]} for this Python and system."
        return NotFoundError(text, f"Try another Python (3.11 to 3.14, 64 bit). {more}")
    errors = [line for line in output.splitlines() if line.startswith("ERROR")]
    return SetupError(f"pip stopped: {errors[-1] if errors else 'no reason given'}", more)


def not_writable(folder: Path, reason: str) -> SetupError:
    return SetupError(f"Stoker cannot write in {folder}: {reason}.", "Put the clone into a folder of your own and start again.")


def no_venv(version: tuple[int, int]) -> SetupError:
    name = f"python{version[0]}.{version[1]}"
    text = f"This {name} comes without its venv module, which Stoker needs to keep its packages apart."
    return SetupError(text, f"On Debian or Ubuntu: sudo apt install {name}-venv. Then start again.")


def too_little_space(folder: Path, free_gb: float, needed_gb: float, purpose: str) -> SetupError:
    text = f"{purpose} needs about {needed_gb:.1f} GB in {folder}; {free_gb:.1f} GB are free there."
    return DiskFullError(text, "Free some space and start again.")
