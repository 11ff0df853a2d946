"""What the window must not pull in, and a trap of PySide6 that ends the process after some thousand calls."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

ROOT = Path(__file__).parents[2]


def test_window_imports_no_tensor_library_and_no_client_of_the_hub() -> None:
    code = (
        "import sys, app.main, app.main_window\n"
        "from app.pages import PAGES\n"
        "for page in PAGES: page.load()\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'numpy', 'safetensors', 'transformers', "
        "'huggingface_hub', 'httpx', 'httpx2'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def test_core_imports_no_qt() -> None:
    modules = ",".join(f"app.core.{path.stem}" for path in (ROOT / "app" / "core").glob("*.py") if path.stem != "__init__")
    code = f"import sys, {modules}\nprint(*(name for name in sys.modules if name.startswith('PySide6')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def test_void_calls_do_not_use_up_none(qtbot: QtBot) -> None:
    """PySide6 6.12.0 on Python 3.10 and 3.11 drops a reference to None with every void call, until the process aborts."""
    label = QLabel()
    qtbot.addWidget(label)
    before = sys.getrefcount(None)
    for number in range(2000):
        label.setText(str(number))
    assert sys.getrefcount(None) > before - 1000


def test_no_test_leaves_this_computer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
        pass
    # pytest-socket warns as it raises, and a warning is an error here. 192.0.2.1 is nobody's (RFC 5737).
    with pytest.raises((RuntimeError, UserWarning), match=r"192\.0\.2\.1"):
        socket.create_connection(("192.0.2.1", 9), timeout=0.2)
