"""What a page may use, built once in `app.main` and handed down. Knows no page."""

from dataclasses import dataclass

from app.backends.local import LocalEngine
from app.backends.queue import DownloadQueue
from app.backends.store import Store
from app.backends.token import TokenStore
from app.core.chats import ChatStore
from app.core.paths import Paths
from app.core.settings import Settings
from app.widgets.theme import Theme


@dataclass(frozen=True, slots=True)
class Services:
    chats: ChatStore
    settings: Settings
    engine: LocalEngine
    theme: Theme
    paths: Paths
    store: Store
    downloads: DownloadQueue
    token: TokenStore
