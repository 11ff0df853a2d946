"""Models on offer: the catalogue, what a search of the Hub found, and verdicts asked for one after the other.

Knows no widget. Whatever fails leaves the catalogue usable.
"""

from collections import deque
from dataclasses import replace

from PySide6.QtCore import QObject, Signal

from app.backends.store import Store
from app.backends.token import TokenStore
from app.core.settings import Settings
from engine.protocol import (
    Card,
    Failed,
    HubModel,
    HubModels,
    HubSort,
    ListCatalogue,
    PlanFor,
    ReadCard,
    RepoPlan,
    SearchHub,
)

_MOST_PLANS = 12  # of one search: each costs some hundred KB
HUB_SORTS = {
    HubSort.DOWNLOADS: "Most downloaded", HubSort.TRENDING: "Trending", HubSort.LIKES: "Most liked",
    HubSort.UPDATED: "Newest",
}  # fmt: skip


class Browser(QObject):
    changed = Signal()
    described = Signal(str)  # repo: its card or plan has come, or will not

    def __init__(self, store: Store, settings: Settings, token: TokenStore, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store, self._settings, self._token = store, settings, token
        self.catalogue: tuple[HubModel, ...] = ()
        self.ground = ""  # what it was judged for, in words
        self._found: tuple[HubModel, ...] = ()
        self.text = ""
        self.sort = HubSort.DOWNLOADS
        self.only_supported = True
        self.problem: Failed | None = None  # why the last search found nothing
        self.catalogue_problem: Failed | None = None
        self._plans: dict[str, RepoPlan | Failed] = {}
        self._cards: dict[str, str | Failed] = {}
        self._to_plan: deque[str] = deque()
        self._plan_id = self._search_id = 0

    @property
    def is_searching(self) -> bool:
        return bool(self._search_id)

    @property
    def found(self) -> tuple[HubModel, ...]:
        """With the verdicts that have come meanwhile."""
        return tuple(self._with_plan(model) for model in self._found)

    def look(self) -> None:
        """The catalogue, judged anew: memory and drives have changed since."""
        self._store.ask(ListCatalogue, self._settings.download_folder, done=self._catalogued, failed=self._not_catalogued)

    def search(self, text: str) -> None:
        """An empty text finds what most people get."""
        self._forget_search()
        self.text, self.problem, self._found = text.strip(), None, ()
        self._search_id = self._store.ask(
            SearchHub, self.text, self.sort, self.only_supported, self._token.value, done=self._searched, failed=self._not_found
        )
        self.changed.emit()

    def leave_search(self) -> None:
        self._forget_search()
        self.text, self.problem, self._found = "", None, ()
        self.changed.emit()

    def describe(self, repo: str) -> None:
        """Ask for the card of a repository, and for its plan where it is not known."""
        if not isinstance(self._cards.get(repo), str):
            self._cards.pop(repo, None)
            self._store.ask(
                ReadCard, repo, self._token.value,
                done=lambda card: self._carded(repo, card), failed=lambda failed: self._not_carded(repo, failed),
            )  # fmt: skip
        if not isinstance(self._plans.get(repo), RepoPlan):
            self._plans.pop(repo, None)
            self._to_plan.appendleft(repo)
            self._plan_next()

    def card(self, repo: str) -> str | Failed | None:
        """None while it is on its way."""
        return self._cards.get(repo)

    def plan(self, repo: str) -> RepoPlan | Failed | None:
        """None while it is on its way, or was not asked for."""
        return self._plans.get(repo)

    def model(self, repo: str) -> HubModel | None:
        for model in (*self.found, *self.catalogue):
            if any(release.repo == repo for release in model.releases):
                return model
        return None

    def forget_failures(self) -> None:
        """There is another token: what was refused may be given now."""
        self._plans = {repo: plan for repo, plan in self._plans.items() if isinstance(plan, RepoPlan)}
        self._cards = {repo: card for repo, card in self._cards.items() if isinstance(card, str)}

    def _catalogued(self, found: HubModels) -> None:
        self.catalogue, self.ground, self.catalogue_problem = found.models, found.ground, None
        self.changed.emit()

    def _not_catalogued(self, failed: Failed) -> None:
        self.catalogue_problem = failed
        self.changed.emit()

    def _searched(self, found: HubModels) -> None:
        self._search_id = 0
        self._found = found.models
        known = {release.repo for model in self.catalogue for release in model.releases}
        repos = [model.releases[0].repo for model in found.models]
        self._to_plan.extend([repo for repo in repos if repo not in self._plans and repo not in known][:_MOST_PLANS])
        self._plan_next()
        self.changed.emit()

    def _not_found(self, failed: Failed) -> None:
        self._search_id, self.problem = 0, failed
        self.changed.emit()

    def _forget_search(self) -> None:
        self._to_plan.clear()
        if self._search_id:
            self._store.forget(self._search_id)
            self._search_id = 0

    def _plan_next(self) -> None:
        if self._plan_id or not self._to_plan:
            return
        repo = self._to_plan.popleft()
        self._plan_id = self._store.ask(
            PlanFor, repo, self._settings.download_folder, self._token.value,
            done=lambda plan: self._planned(repo, plan), failed=lambda failed: self._planned(repo, failed),
        )  # fmt: skip

    def _planned(self, repo: str, plan: RepoPlan | Failed) -> None:
        self._plan_id = 0
        self._plans[repo] = plan
        self._plan_next()
        self.described.emit(repo)
        self.changed.emit()

    def _carded(self, repo: str, card: Card) -> None:
        self._cards[repo] = card.text
        self.described.emit(repo)

    def _not_carded(self, repo: str, failed: Failed) -> None:
        self._cards[repo] = failed
        self.described.emit(repo)

    def _with_plan(self, model: HubModel) -> HubModel:
        """A release of the catalogue has its verdict already."""
        repo = model.releases[0].repo
        plan = self._plans.get(repo)
        if isinstance(plan, RepoPlan):
            return replace(model, releases=plan.model.releases, gate=plan.model.gate)
        listed = next((entry for entry in self.catalogue if any(item.repo == repo for item in entry.releases)), None)
        if listed is None:
            return model
        release = next(item for item in listed.releases if item.repo == repo)
        return replace(model, releases=(release,), total_params=listed.total_params, active_params=listed.active_params)
