"""The window: a rail of pages at the left, the chosen page beside it. Knows PAGES and nothing that is on a page."""

import base64

from PySide6.QtCore import QByteArray, QEvent, QSize, Qt
from PySide6.QtGui import QCloseEvent, QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QButtonGroup,
    QFrame,
    QHBoxLayout,
    QLabel,
    QMainWindow,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.pages import PAGES, PageSpec
from app.pages.services import Services
from app.widgets.error_banner import ErrorBanner
from app.widgets.icons import pixmap

_RAIL_PX = 56
_SMALLEST = QSize(760, 480)
_USUAL = QSize(1280, 800)


class MainWindow(QMainWindow):
    def __init__(self, services: Services, pages: tuple[PageSpec, ...] = PAGES, first: str = "") -> None:
        """`first` is the key of the page to begin with, by default that of the first."""
        super().__init__()
        self._services = services
        self._specs = {spec.key: spec for spec in pages}
        self._pages: dict[str, QWidget] = {}  # built when first shown
        self._buttons: dict[str, QToolButton] = {}
        self._stack = QStackedWidget()
        self._banner = ErrorBanner(services.theme)
        self._logo = QLabel(alignment=Qt.AlignmentFlag.AlignCenter)
        self._rail = self._build_rail()
        self.setWindowTitle("Stoker")
        self._lay_out()
        services.theme.changed.connect(self._paint_icons)
        self._paint_icons()
        self._restore_geometry()
        QShortcut(QKeySequence("Ctrl+Q"), self).activated.connect(self.close)
        self._logo.setToolTip("Ctrl+Q quits Stoker")
        self.show_page(first or pages[0].key)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter presses the button that has the focus, as Space does and once while it is held; Qt does so in dialogs alone."""
        button, is_enter = self.focusWidget(), event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.isAutoRepeat() and isinstance(button, QAbstractButton):
            for kind in (QEvent.Type.KeyPress, QEvent.Type.KeyRelease):
                QApplication.sendEvent(button, QKeyEvent(kind, Qt.Key.Key_Space, Qt.KeyboardModifier.NoModifier, " "))
        else:
            super().keyPressEvent(event)

    @property
    def current_page(self) -> QWidget | None:
        return self._stack.currentWidget()

    def show_page(self, key: str) -> None:
        if key not in self._pages:
            page = self._specs[key].load()(self._services, self._stack)
            self._pages[key] = page
            wanted = getattr(page, "page_wanted", None)
            if wanted is not None:
                wanted.connect(self.show_page)
            opening = getattr(page, "opening_wanted", None)
            if opening is not None:
                opening.connect(self._open_on)
            self._stack.addWidget(page)
        page = self._pages[key]
        self._stack.setCurrentWidget(page)
        self._buttons[key].setChecked(True)
        self._rail.setVisible(getattr(page, "has_rail", True))
        self._paint_icons()
        page.setFocus()  # not left on the rail; a page hands it on by a focus proxy
        activate = getattr(page, "activate", None)
        if activate is not None:
            activate()

    def _open_on(self, key: str, what: str) -> None:
        self.show_page(key)
        self._pages[key].open_item(what)  # type: ignore[attr-defined]

    def show_problem(self, sentence: str, detail: str = "") -> None:
        """Above whatever page is open."""
        self._banner.show_problem(sentence, detail)

    def come_to_front(self) -> None:
        if self.isMinimized():
            self.showNormal()
        self.show()
        self.raise_()
        self.activateWindow()

    def closeEvent(self, event: QCloseEvent) -> None:
        self._services.settings.window_geometry = base64.b64encode(self.saveGeometry().data()).decode()
        super().closeEvent(event)

    def _lay_out(self) -> None:
        self.setMinimumSize(_SMALLEST)
        content = QVBoxLayout()
        content.setContentsMargins(0, 0, 0, 0)
        content.setSpacing(0)
        content.addWidget(self._banner)
        content.addWidget(self._stack, 1)
        whole = QWidget()
        row = QHBoxLayout(whole)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        row.addWidget(self._rail)
        row.addLayout(content, 1)
        self.setCentralWidget(whole)

    def _build_rail(self) -> QFrame:
        rail = QFrame()
        rail.setProperty("kind", "rail")
        rail.setFixedWidth(_RAIL_PX)
        column = QVBoxLayout(rail)
        column.setContentsMargins(7, 12, 7, 12)
        column.setSpacing(6)
        self._logo.setFixedHeight(40)
        column.addWidget(self._logo)
        group = QButtonGroup(self)
        for spec in self._specs.values():
            if not spec.is_last:
                column.addWidget(self._rail_button(spec, group), 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(1)
        for spec in self._specs.values():
            if spec.is_last:
                column.addWidget(self._rail_button(spec, group), 0, Qt.AlignmentFlag.AlignHCenter)
        return rail

    def _rail_button(self, spec: PageSpec, group: QButtonGroup) -> QToolButton:
        shortcut = QKeySequence(spec.shortcut)
        button = QToolButton()
        button.setCheckable(True)
        button.setIconSize(QSize(20, 20))
        button.setAccessibleName(spec.title)
        button.setToolTip(f"{spec.title} ({shortcut.toString(QKeySequence.SequenceFormat.NativeText)})")
        button.setProperty("kind", "rail")
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # so that a click leaves the cursor in the composer
        button.clicked.connect(lambda: self.show_page(spec.key))
        QShortcut(shortcut, self).activated.connect(lambda: self.show_page(spec.key))
        group.addButton(button)
        self._buttons[spec.key] = button
        return button

    def _paint_icons(self) -> None:
        theme = self._services.theme
        self._logo.setPixmap(pixmap("flame", theme.palette.accent, 20, self.devicePixelRatioF()))
        for key, button in self._buttons.items():
            button.setIcon(theme.icon(self._specs[key].icon, theme.palette.text if button.isChecked() else theme.palette.muted))

    def _restore_geometry(self) -> None:
        """Where it was; the first time as large as the drawing, or as the screen allows."""
        try:
            saved = base64.b64decode(self._services.settings.window_geometry, validate=True)
        except ValueError:
            saved = b""
        if not saved or not self.restoreGeometry(QByteArray(saved)):
            available = self.screen().availableSize() - QSize(40, 60)
            self.resize(_USUAL.boundedTo(available).expandedTo(_SMALLEST))
