"""Shared by every test: offscreen Qt, slow tests on request, loopback sockets only."""

import os
import tempfile
from pathlib import Path

import pytest
from pytest_socket import socket_allow_hosts

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HF_HOME"] = str(Path(tempfile.gettempdir()) / "stoker-tests-have-no-hf-home")  # model lists include its cache
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as engine.cli does


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    # The offscreen platform says so of every window; every other message of Qt fails a test.
    config.addinivalue_line("qt_log_ignore", r"^This plugin does not support (propagateSizeHints|raise)\(\)")


def pytest_runtest_setup(item: pytest.Item) -> None:
    socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)  # until the test is torn down


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
