"""Pictures of the pages with stand-ins for engine and Hub, to compare with the drawings in `ui/`.

    QT_QPA_PLATFORM=offscreen python -m tests.e2e.screenshots OUT_DIR [NAME …]

Writes chat-light, chat-dark, thought, streaming-light, streaming-dark, elsewhere, reading, died, failed, full-disk, notice,
outdated, loading, looking, empty, no-models, nothing-found, settings, narrow (1024×600), small (760×480), long, models-light,
models-dark, library-light, library-dark, search, offline, details-light, details-dark, sign-in, downloads-light, downloads-dark,
no-downloads, models-narrow, library-small, downloads-narrow, each step of the set-up (wizard-*) with what may befall it, and
scale-200 (1280×800 at 200 %) as PNG; NAMEs pick some of them.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QApplication, QPushButton, QWidget

from app.backends.local import LocalEngine
from app.backends.queue import DownloadQueue
from app.backends.store import Store
from app.backends.token import TokenStore
from app.core.chats import AnswerStats, ChatStore, MessageState
from app.core.paths import app_paths
from app.core.settings import Settings
from app.core.wizard import Step
from app.main_window import MainWindow
from app.pages.chat import ChatPage
from app.pages.models import ModelsPage
from app.pages.services import Services
from app.pages.wizard import WizardPage
from app.widgets.composer import Composer
from app.widgets.message_view import MessageView
from app.widgets.theme import Theme
from app.widgets.token_dialog import TokenDialog
from engine.hardware.probe import probe_all
from engine.protocol import MachineFacts, encode
from tests.engine.machines import computer

_FAKE = Path(__file__).parents[1] / "helpers" / "fake_engine.py"
_FAKE_STORE = _FAKE.with_name("fake_store.py")
_DAY = 86_400.0
NOTICE = "The fast kernels are not built, so computing takes longer than it could; there is no C++ compiler on this computer."
QUESTION = "This takes 9 seconds on 40 million rows. What would you change first?"
THOUGHT = "The column is wrapped in a function, so the index cannot be used. Suggest a range."
CALL = 'explain_query\n{\n  "sql": "SELECT id, total FROM orders",\n  "analyze": true\n}'
ANSWER = """The planner cannot use your index because the column is wrapped in a function. Compare a range instead, so the index is \
read in order and only the rows of that day are touched:

```sql
SELECT id, total
FROM   orders
WHERE  created_at >= '2026-11-28'
  AND  created_at <  '2026-11-29';
```

If it is still slow, check with `EXPLAIN (ANALYZE, BUFFERS)` that the heap is not read for every row; a covering index on \
`(created_at) INCLUDE (id, total)` avoids that.
"""
RICH = """## What to look at

1. **Statistics**: run `ANALYZE orders` and compare *estimated* with *actual* rows.
2. The visibility map:
   - `VACUUM` makes index-only scans possible
   - a bloated table hides behind a fast index

| Plan | Rows read | Time |
|---|---:|---:|
| Sequential scan | 40 000 000 | 9.1 s |
| Index range | 12 400 | 14 ms |

> Measure before and after; caches lie.

See [the manual](https://www.postgresql.org/docs/current/using-explain.html). <b>HTML stays text</b>, and so does \
![a picture](https://example.org/a.png).
"""


class Studio:
    """One window with its own data folder and a fake engine in `mode`."""

    def __init__(self, app: QApplication, folder: Path, theme: str, *mode: str, store: str = "scenes") -> None:
        self.app = app
        paths = app_paths(folder)
        settings = Settings(paths.settings)
        self._now = time.time()
        self.chats = ChatStore(paths.chats, clock=lambda: self._now)
        self.engine = LocalEngine(sys.executable, [str(_FAKE), *mode])
        dress = Theme()
        dress.set_mode(theme)
        dress.apply(app)
        self.store = Store(sys.executable, [str(_FAKE_STORE), *store.split()])
        token = TokenStore(paths.token)
        queue = DownloadQueue(self.store, settings, token)
        self.services = Services(self.chats, settings, self.engine, dress, paths, self.store, queue, token)
        self.window = MainWindow(self.services)
        self.window.resize(QSize(1280, 800))
        self.picture: QWidget = self.window

    @property
    def page(self) -> ChatPage:
        page = self.window.current_page
        assert isinstance(page, ChatPage), "the chat page comes first"
        return page

    def seed(self) -> None:
        """A history like the one in the drawing."""
        begun = self._now
        history = (
            (9, "Reading notes: The Sea Around Us"), (8, "Unit tests for the parser"), (1, "Letter to the landlord"),
            (1, "Bash: rename photos by date taken"), (0, "Explain Raft like a kitchen"), (0, "Packing list for a week in Norway"),
        )  # fmt: skip
        for number, (days, title) in enumerate(history):
            self._now = begun - days * _DAY - 60 + number
            self.chats.add_message(self.chats.create(title).id, "user", title)
        self._now = begun
        chat = self.chats.create("Why is my query slow?")
        self.chats.add_message(chat.id, "user", QUESTION)
        for content in (ANSWER, RICH):
            answer = self.chats.add_message(chat.id, "assistant", content)
            stats = AnswerStats(167, 18.4, 0.9, "end", "gpt-oss-20b")
            self.chats.update_message(answer.id, state=MessageState.COMPLETE, stats=stats)
            if content is ANSWER:
                self.chats.update_message(answer.id, thought=THOUGHT, calls=[CALL])
                self.chats.add_message(chat.id, "user", "And what else?")

    def start(self) -> None:
        self.window.show()
        self.engine.start()
        self.run_until(lambda: self.engine.state.value in ("ready", "dead", "idle") and self.engine.state.value != "idle", 3)

    def open_first(self) -> None:
        self.page._chats.refresh()
        self.page._open(self.chats.chats()[0])

    def run_until(self, condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not condition():
            self.app.processEvents()
            time.sleep(0.005)

    def run_for(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def send(self, text: str) -> None:
        composer = self.page.findChild(Composer)
        assert composer is not None, "the page has a composer"
        composer.submitted.emit(text)

    def shoot(self, path: Path) -> None:
        self.run_for(0.3)
        self.picture.grab().save(str(path))

    def close(self) -> None:
        self.window.close()
        self.engine.stop()
        self.store.stop()
        self.chats.close()
        self.window.deleteLater()
        self.app.processEvents()


def _chat(studio: Studio) -> None:
    studio.seed()
    studio.start()
    studio.send("Warm up the meter, please.")
    studio.run_until(lambda: not studio.page._chat.is_answering, 6)
    studio.open_first()
    first = next(chat for chat in studio.chats.chats() if chat.title.startswith("Why"))
    studio.page._open(first)


def _thought(studio: Studio) -> None:
    """The top of the conversation, the first thought open."""
    _chat(studio)
    view = studio.page.findChild(MessageView)
    assert view is not None, "the page has a view"
    view.verticalScrollBar().setValue(0)
    studio.run_for(0.2)
    for words in ("Thought", "Wants to call"):
        next(button for button in view.findChildren(QPushButton) if words in button.text() and button.isVisible()).click()


def _thinking(studio: Studio) -> None:
    """A thought is being written, open; the menu of how much to think is too."""
    studio.seed()
    studio.start()
    studio.send(QUESTION)
    view = studio.page.findChild(MessageView)
    assert view is not None, "the page has a view"

    def header() -> QPushButton | None:
        found = (button for button in view.findChildren(QPushButton) if "Thinking" in button.text())
        return next(found, None)

    studio.run_until(lambda: header() is not None, 4)
    if button := header():
        button.click()
    studio.run_for(0.6)


def _streaming(studio: Studio) -> None:
    studio.seed()
    studio.start()
    studio.send(QUESTION)
    studio.run_for(2.4)


def _elsewhere(studio: Studio) -> None:
    """One chat is being answered, another is open and one has just been deleted."""
    _streaming(studio)
    studio.page._open(studio.chats.chats()[3])
    studio.page._list._delete()
    studio.page._open(studio.chats.chats()[2])


def _looking(studio: Studio) -> None:
    studio.window.show()
    studio.engine.start()


def _nothing_found(studio: Studio) -> None:
    studio.seed()
    studio.start()
    studio.page._search()
    studio.page._list._search.setText("perpetuum mobile")


def _settings(studio: Studio) -> None:
    studio.start()
    studio.window.show_page("settings")


def _reading(studio: Studio) -> None:
    studio.start()
    studio.send("A long prompt. " * 2000)
    studio.run_for(0.8)


def _died(studio: Studio) -> None:
    _streaming(studio)


def _failed(studio: Studio) -> None:
    studio.start()


def _full_disk(studio: Studio) -> None:
    studio.seed()
    studio.start()
    studio.page._chats.refresh()
    (pages,) = studio.chats._db.execute("PRAGMA page_count").fetchone()
    studio.chats._db.execute(f"PRAGMA max_page_count = {pages}")
    composer = studio.page.findChild(Composer)
    assert composer is not None, "the page has a composer"
    composer.set_text("A long message that does not fit any more. " * 600)
    composer.submitted.emit(composer.text)


def _outdated(studio: Studio) -> None:
    _chat(studio)
    studio.services.settings.context = 4096


def _loading(studio: Studio) -> None:
    studio.seed()
    studio.window.show()
    studio.engine.start()
    studio.run_until(lambda: studio.page._choice.progress is not None and studio.page._choice.progress.done > 4e9, 5)


def _empty(studio: Studio) -> None:
    studio.start()


def _no_models(studio: Studio) -> None:
    studio.window.show()
    studio.engine.start()
    studio.run_for(0.8)


def _narrow(studio: Studio) -> None:
    studio.window.resize(1024, 600)
    _chat(studio)


def _small(studio: Studio) -> None:
    studio.window.resize(760, 480)
    _chat(studio)


def _long(studio: Studio) -> None:
    studio.start()
    chat = studio.chats.create("A long one")
    studio.chats.add_message(chat.id, "user", "word " * 1500)
    code = "\n".join(f"def function_{number}(x: int) -> int:\n    return x + {number}  # plus" for number in range(200))
    studio.chats.add_message(chat.id, "assistant", f"Here it is:\n\n```python\n{code}\n```\n\nThat is all.")
    studio.open_first()


def _models(studio: Studio) -> None:
    studio.window.show()
    studio.services.downloads.begin()
    studio.window.show_page("models")
    studio.run_for(1.0)


def _models_page(studio: Studio) -> ModelsPage:
    page = studio.window.current_page
    assert isinstance(page, ModelsPage), "the models page is open"
    return page


def _library(studio: Studio) -> None:
    _models(studio)
    header = _models_page(studio)._header
    header.set_view("here")
    header.view_changed.emit("here")


def _search(studio: Studio) -> None:
    _models(studio)
    page = _models_page(studio)
    page._header.search.setText("coder")
    page._search("coder")
    studio.run_for(0.6)


def _details(studio: Studio) -> None:
    _models(studio)
    _models_page(studio)._open("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8")
    studio.run_for(0.6)


def _sign_in(studio: Studio) -> None:
    """The dialog alone: it is a window of its own."""
    _models(studio)
    dialog = TokenDialog(lambda token, keep: "", studio.window, repo="maker/Gated-8x7B", has_token=True)
    dialog.show()
    studio.run_for(0.3)
    studio.picture = dialog


def _downloads(studio: Studio) -> None:
    studio.window.show()
    studio.services.downloads.begin()
    studio.window.show_page("downloads")
    studio.run_for(1.0)


def _wizard(step: Step, *, act: Callable[[WizardPage], object] | None = None) -> Callable[[Studio], None]:
    """The set-up at one of its steps."""

    def scene(studio: Studio) -> None:
        studio.window.show()
        studio.services.downloads.begin()
        studio.window.show_page("wizard")
        studio.run_for(0.8)
        page = studio.window.current_page
        assert isinstance(page, WizardPage), "the set-up is open"
        if step >= Step.PLAN:
            page._controller.choose("Qwen/Qwen3-30B-A3B-Instruct-2507")
            studio.run_for(0.6)
        else:
            page._controller.go(step)
        if act is not None:
            act(page)
            studio.run_for(0.5)

    return scene


def _scrolled_down(page: WizardPage) -> None:
    bar = page._plan.area.verticalScrollBar()
    bar.setValue(bar.maximum())


def _recorded(name: str, folder: Path) -> str:
    """Facts of a computer that this one is not, as the child tells them."""
    file = folder / "facts.json"
    file.write_text(encode(MachineFacts(0, probe_all([], computer(name, folder / "root")))))
    return str(file)


def _at(width: int, height: int, act: Callable[[Studio], None]) -> Callable[[Studio], None]:
    def sized(studio: Studio) -> None:
        studio.window.resize(width, height)
        act(studio)

    return sized


_STORES = {"offline": "offline", "no-downloads": "empty"} | dict.fromkeys(
    ("wizard-choose-light", "wizard-choose-dark", "wizard-plan-light", "wizard-plan-dark", "wizard-moved", "wizard-plan-narrow", "wizard-plan-small",
     "wizard-gated", "wizard-used",
     "wizard-measured"), "normal --measured"
) | {
    "wizard-look-laptop": "normal --machine {laptop}", "wizard-look-broken": "normal --machine {half_broken_nvml}",
    "wizard-look-light": "normal", "wizard-look-dark": "normal", "wizard-measure": "bench-slow", "wizard-bench-failed": "bench-fails",
    "wizard-unmeasured": "normal", "wizard-choose-unmeasured": "normal",
    **dict.fromkeys(("wizard-gpu-light", "wizard-gpu-dark", "wizard-gpu-limited", "wizard-gpu-none", "wizard-gpu-refused", "wizard-gpu-narrow",
                     "wizard-gpu-small", "wizard-gpu-low"), "normal --measured --plan gpu --machine {two_cards}"),
    "wizard-full-disk": "normal --measured --plan full-disk", "wizard-unreadable": "normal --plan unreadable",
    "wizard-refused": "normal --measured --plan refused", "wizard-offline": "offline", "wizard-download": "normal --measured --rate 200000",
    "wizard-ram": "normal --measured --plan ram",
}  # fmt: skip
_SCENES: dict[str, tuple[str, tuple[str, ...], Callable[[Studio], None]]] = {
    "chat-light": ("light", ("normal", "--rate", "80"), _chat),
    "chat-dark": ("dark", ("normal", "--rate", "80"), _chat),
    "thought-light": ("light", ("normal", "--rate", "80", "--thinks"), _thought),
    "thought-dark": ("dark", ("normal", "--rate", "80", "--thinks"), _thought),
    "thinking": ("dark", ("normal", "--rate", "12", "--thinks"), _thinking),
    "streaming-light": ("light", ("normal", "--rate", "40"), _streaming),
    "streaming-dark": ("dark", ("normal", "--rate", "40"), _streaming),
    "elsewhere": ("light", ("normal", "--rate", "40"), _elsewhere),
    "reading": ("light", ("normal",), _reading),
    "died": ("dark", ("crash", "--after", "60"), _died),
    "failed": ("light", ("fail-load", "--code", "plan.too_much"), _failed),
    "full-disk": ("light", ("normal",), _full_disk),
    "notice": ("light", ("normal", "--rate", "80", "--notice", NOTICE), _chat),
    "outdated": ("light", ("normal", "--rate", "80"), _outdated),
    "loading": ("light", ("slow",), _loading),
    "looking": ("light", ("hang-start",), _looking),
    "nothing-found": ("dark", ("normal",), _nothing_found),
    "settings": ("light", ("normal",), _settings),
    "empty": ("dark", ("normal",), _empty),
    "no-models": ("light", ("no-models",), _no_models),
    "narrow": ("light", ("normal", "--rate", "80"), _narrow),
    "small": ("dark", ("normal", "--rate", "80"), _small),
    "long": ("light", ("normal",), _long),
    "models-light": ("light", (), _models),
    "models-dark": ("dark", (), _models),
    "library-light": ("light", (), _library),
    "library-dark": ("dark", (), _library),
    "search": ("light", (), _search),
    "offline": ("dark", (), _search),
    "details-light": ("light", (), _details),
    "details-dark": ("dark", (), _details),
    "sign-in": ("light", (), _sign_in),
    "downloads-light": ("light", (), _downloads),
    "downloads-dark": ("dark", (), _downloads),
    "no-downloads": ("light", (), _downloads),
    "models-narrow": ("dark", (), _at(1024, 600, _models)),
    "library-small": ("light", (), _at(760, 480, _library)),
    "wizard-look-light": ("light", (), _wizard(Step.LOOK)),
    "wizard-look-dark": ("dark", (), _wizard(Step.LOOK)),
    "wizard-look-laptop": ("light", (), _wizard(Step.LOOK)),
    "wizard-look-broken": ("dark", (), _wizard(Step.LOOK)),
    "wizard-measure": ("light", (), _wizard(Step.MEASURE, act=lambda page: page._begin_measuring())),
    "wizard-measured": ("dark", (), _wizard(Step.MEASURE)),
    "wizard-bench-failed": ("light", (), _wizard(Step.MEASURE, act=lambda page: page._begin_measuring())),
    "wizard-choose-light": ("light", (), _wizard(Step.CHOOSE)),
    "wizard-choose-dark": ("dark", (), _wizard(Step.CHOOSE)),
    "wizard-choose-unmeasured": ("light", (), _wizard(Step.CHOOSE)),
    "wizard-plan-light": ("light", (), _wizard(Step.PLAN)),
    "wizard-plan-dark": ("dark", (), _wizard(Step.PLAN)),
    "wizard-moved": (
        "light",
        (),
        _wizard(Step.PLAN, act=lambda page: page._controller.wish(expert_ram="9000MB", context=32768)),
    ),
    "wizard-ram": ("light", (), _wizard(Step.PLAN)),
    "wizard-gpu-light": ("light", (), _wizard(Step.PLAN)),
    "wizard-gpu-dark": ("dark", (), _wizard(Step.PLAN)),
    "wizard-gpu-limited": ("light", (), _wizard(Step.PLAN, act=lambda page: page._controller.wish(vram_limit="7000MB"))),
    "wizard-gpu-none": ("dark", (), _wizard(Step.PLAN, act=lambda page: page._controller.wish(vram_limit="0"))),
    "wizard-gpu-refused": ("light", (), _wizard(Step.PLAN, act=lambda page: page._controller.wish(vram_limit="2000MB"))),
    "wizard-gpu-narrow": ("dark", (), _at(1024, 600, _wizard(Step.PLAN))),
    "wizard-gpu-low": ("light", (), _at(1024, 600, _wizard(Step.PLAN, act=_scrolled_down))),
    "wizard-gpu-small": ("light", (), _at(760, 900, _wizard(Step.PLAN))),
    "wizard-unmeasured": ("light", (), _wizard(Step.PLAN)),
    "wizard-full-disk": ("dark", (), _wizard(Step.PLAN)),
    "wizard-unreadable": ("light", (), _wizard(Step.PLAN)),
    "wizard-refused": ("light", (), _wizard(Step.PLAN)),
    "wizard-gated": ("dark", (), _wizard(Step.PLAN, act=lambda page: page._controller.choose("maker/Gated-8x7B"))),
    "wizard-used": ("light", (), _wizard(Step.PLAN, act=lambda page: page._controller.choose("/models/stoker-demo-8x135m"))),
    "wizard-offline": ("light", (), _wizard(Step.PLAN)),
    "wizard-download": ("light", (), _wizard(Step.PLAN, act=lambda page: page._controller.finish())),
    "wizard-plan-narrow": ("dark", (), _at(1024, 600, _wizard(Step.PLAN))),
    "wizard-plan-small": ("light", (), _at(760, 480, _wizard(Step.PLAN))),
    "downloads-narrow": ("light", (), _at(1024, 600, _downloads)),
}


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__)
        return 2
    out, wanted = Path(arguments[0]), set(arguments[1:])
    out.mkdir(parents=True, exist_ok=True)
    app = QApplication.instance() or QApplication([])
    assert isinstance(app, QApplication), "a window needs a QApplication"
    suffix = os.environ.get("STOKER_SHOT_SUFFIX", "")
    for name, (theme, mode, act) in _SCENES.items():
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            store = _STORES.get(name, "scenes")
            if recorded := re.search(r"\{(\w+)\}", store):
                store = store.replace(recorded[0], _recorded(recorded[1], Path(folder)))
            studio = Studio(app, Path(folder), theme, *mode, store=store)
            act(studio)
            studio.shoot(out / f"{name}{suffix}.png")
            studio.close()
    if not suffix and (not wanted or "scale-200" in wanted):
        # The scale is fixed when Qt starts, so that picture needs a process of its own.
        scaled = {**os.environ, "QT_SCALE_FACTOR": "2", "STOKER_SHOT_SUFFIX": "-200"}
        subprocess.run([sys.executable, "-m", "tests.e2e.screenshots", str(out), "chat-light"], env=scaled, check=True)
        (out / "chat-light-200.png").replace(out / "scale-200.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
