"""The native library, built once when it is absent or older than its sources, and a pool of every tier that runs here."""

from collections.abc import Callable, Iterator

import pytest

from engine.kernels.abi import available_isas
from engine.kernels.build import FOLDER, LIBRARY, ROOT, build
from engine.kernels.native import Native


def _is_current() -> bool:
    sources = [*(FOLDER / "cpu").iterdir(), ROOT / "CMakeLists.txt"]
    return LIBRARY.is_file() and LIBRARY.stat().st_mtime >= max(source.stat().st_mtime for source in sources)


@pytest.fixture(scope="session")
def library() -> None:
    if not _is_current():
        result = build()
        if isinstance(result, str):
            pytest.skip(result)


@pytest.fixture(scope="session", params=["portable", "avx2", "avx512", "avx512_bf16", "neon"])
def isa(request: pytest.FixtureRequest, library: None) -> str:
    name: str = request.param
    if name not in available_isas():
        pytest.skip(f"this machine has no {name}")
    return name


@pytest.fixture
def kernels(library: None) -> Iterator[Callable[..., Native]]:
    """Makes pools that are closed after the test."""
    made: list[Native] = []

    def make(isa: str = "best", threads: int = 2, fast: bool = False) -> Native:
        made.append(Native(threads, isa, fast))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
