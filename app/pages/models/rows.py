"""Models → rows with what can be done about each. Knows which word goes on a button; does nothing itself."""

from collections.abc import Callable
from dataclasses import dataclass

from app.core.download_words import SIGN_IN_CODES, job_words
from app.core.library_words import STATE_HINTS, entry_size, entry_subtitle, state_words
from app.core.problem import Action
from app.core.row import RowView
from app.core.verdicts import FIT_COLORS, FIT_WORDS, best_release, bytes_text, gain_text, size_text, speed_text, subtitle
from engine.protocol import DownloadJob, DownloadState, Failed, HubModel, ModelEntry, ModelState, Progress, Release, Verdict

_OPEN = (DownloadState.RUNNING, DownloadState.WAITING)


@dataclass(frozen=True, slots=True)
class Deeds:
    """What the page can do, by model; each takes a repository or a `ModelEntry`."""

    run: Callable[[ModelEntry], object]
    get: Callable[[str], object]
    details: Callable[[str], object]
    downloads: Callable[[], object]
    look: Callable[[], object]
    verify: Callable[[ModelEntry], object]
    move: Callable[[ModelEntry], object]
    remove: Callable[[ModelEntry], object]
    stop: Callable[[ModelEntry], object]
    show_folder: Callable[[ModelEntry], object]
    forget: Callable[[ModelEntry], object]


@dataclass(frozen=True, slots=True)
class Here:
    """What is known of a repository on this computer."""

    entry: ModelEntry | None
    job: DownloadJob | None


def model_row(model: HubModel, here_of: Callable[[str], Here], failure: Failed | None, deeds: Deeds) -> RowView:
    """A model on offer, by the release that suits this computer; one that is here already comes first."""
    release = next((item for item in model.releases if here_of(item.repo).entry is not None), best_release(model))
    chip, color, tooltip = _verdict_words(release.verdict, failure)
    return RowView(
        release.repo, model.name, subtitle(model), size_text(release), chip, color, speed_text(release.verdict), tooltip,
        _offer_actions(release, here_of(release.repo), deeds), is_primary=here_of(release.repo).entry is not None,
    )  # fmt: skip


def release_row(release: Release, here: Here, failure: Failed | None, deeds: Deeds) -> RowView:
    """One of several formats, among the details of a model."""
    chip, color, tooltip = _verdict_words(release.verdict, failure)
    size = bytes_text(release)
    actions = tuple(item for item in _offer_actions(release, here, deeds, is_opened=True) if item[0] != "Details")
    title = release.weight_format or release.repo.split("/")[-1]
    return RowView(
        release.repo, title, release.repo, size, chip, color, speed_text(release.verdict), tooltip, actions,
        is_primary=here.entry is not None or (here.job is None and bool(actions) and actions[0][0] == "Get"),
    )  # fmt: skip


def entry_row(
    entry: ModelEntry, job: DownloadJob | None, busy: Progress | None, *, is_busy: bool, now: float, deeds: Deeds
) -> RowView:
    """A model on this computer."""
    chip, color = state_words(entry)
    words = entry_subtitle(entry, now)
    if is_busy:
        share = f" {busy.done / busy.total:.0%}" if busy is not None and busy.total else ""
        chip, color, words = f"At work{share}", "accent", "Its files are being read; you can stop that at any time."
    elif job is not None and job.state is not DownloadState.DONE and entry.state is ModelState.ARRIVING:
        words = job_words(job, None).text
        if job.state in _OPEN:
            chip, color = "Downloading", "accent"
    return RowView(
        entry.path, entry.name, words, entry_size(entry), chip, color, speed_text(entry.verdict),
        f"{STATE_HINTS[entry.state]}\n{entry.path}", _entry_actions(entry, job, deeds, is_busy=is_busy),
    )  # fmt: skip


def _verdict_words(verdict: Verdict | None, failure: Failed | None) -> tuple[str, str, str]:
    if verdict is not None:
        return FIT_WORDS[verdict.fit], FIT_COLORS[verdict.fit], f"{verdict.text}\n{gain_text(verdict)}".strip()
    if failure is not None:
        word = "Sign in to see" if failure.code in SIGN_IN_CODES else "Not known"
        return word, "muted", f"{failure.text} {failure.hint}".strip()
    return "", "muted", ""


def _offer_actions(release: Release, here: Here, deeds: Deeds, *, is_opened: bool = False) -> tuple[Action, ...]:
    details: Action = ("Details", lambda: deeds.details(release.repo))
    if (entry := here.entry) is not None:
        return ("Run", lambda: deeds.run(entry)), details
    if here.job is not None and here.job.state is not DownloadState.DONE:
        return (_job_word(here.job), deeds.downloads), details
    get: Action = ("Get", lambda: deeds.get(release.repo))
    if release.verdict is not None and not release.verdict.fit.runs:
        return (details,) if not is_opened else (("Get anyway", get[1]),)
    return get, details


def _job_word(job: DownloadJob) -> str:
    if job.state is DownloadState.RUNNING and job.total_bytes:
        return f"{job.done_bytes / job.total_bytes:.0%}"
    return {DownloadState.PAUSED: "Paused", DownloadState.FAILED: "Failed"}.get(job.state, "Waiting")


def _entry_actions(entry: ModelEntry, job: DownloadJob | None, deeds: Deeds, *, is_busy: bool) -> tuple[Action, ...]:
    if is_busy:
        return (("Stop", lambda: deeds.stop(entry)),)
    actions: list[Action] = []
    if not entry.problem:
        actions.append(("Run", lambda: deeds.run(entry)))
    elif job is not None and job.state in _OPEN:
        actions.append((_job_word(job), deeds.downloads))
    elif entry.state in (ModelState.DAMAGED, ModelState.ARRIVING) and entry.repo:
        actions.append(("Repair" if entry.state is ModelState.DAMAGED else "Continue", lambda: deeds.get(entry.repo)))
    elif entry.state is ModelState.AWAY:
        actions.append(("Refresh", deeds.look))
    else:
        actions.append(("Show", lambda: deeds.show_folder(entry)))
    if entry.is_ours and entry.state in (ModelState.WHOLE, ModelState.DAMAGED):
        actions.append(("Compare with checksums", lambda: deeds.verify(entry)))
    if entry.is_ours and entry.state is ModelState.WHOLE:
        actions.append(("Move to another folder…", lambda: deeds.move(entry)))
    if entry.state is not ModelState.AWAY and not entry.problem:
        actions.append(("Show in file manager", lambda: deeds.show_folder(entry)))
    if entry.is_ours and entry.state is not ModelState.AWAY:
        actions.append(("Remove…", lambda: deeds.remove(entry)))
    if not entry.is_ours or entry.state is ModelState.AWAY:
        actions.append(("Take its folder off the list", lambda: deeds.forget(entry)))
    return tuple(actions)
