"""A job of the download queue → what its row says. Pure; no Qt."""

import re
from dataclasses import dataclass

from app.core.figures import format_bytes
from engine.protocol import DownloadJob, DownloadProgress, DownloadState

SIGN_IN_CODES = ("hub.gated", "hub.bad_token", "hub.forbidden")  # of failures that another token may mend
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.")


@dataclass(frozen=True, slots=True)
class JobWords:
    """`color` is the name of a palette's colour; `share` of the bytes that are here, None where nothing is known."""

    text: str
    color: str
    share: float | None
    detail: str = ""  # more, for a tooltip


def job_words(job: DownloadJob, progress: DownloadProgress | None) -> JobWords:
    share = min(1.0, job.done_bytes / job.total_bytes) if job.total_bytes else None
    match job.state:
        case DownloadState.DONE:
            return JobWords(f"Verified · {format_bytes(job.total_bytes)}", "ok", 1.0)
        case DownloadState.FAILED:
            return JobWords(f"{job.text} {job.hint}".strip(), "bad", share)
        case DownloadState.PAUSED:
            return JobWords(f"Paused · {_here(job)}", "warn", share)
        case DownloadState.WAITING:
            return JobWords(f"Waiting for its turn · {_here(job)}", "muted", share)
    if job.text:
        return JobWords(job.text, "warn", share, _amounts(job))
    return JobWords(_running(job, progress), "accent", share, _verified(progress))


def _running(job: DownloadJob, progress: DownloadProgress | None) -> str:
    if not job.total_bytes:
        return "Asking the Hub what there is…"
    parts = [_amounts(job)]
    if progress is not None and progress.bytes_per_second is not None:
        parts.append(f"{format_bytes(progress.bytes_per_second)}/s")
        if progress.seconds_left is not None:
            parts.append(left_text(progress.seconds_left))
    if progress is not None and (shard := _SHARD.search(progress.file)):
        parts.append(f"shard {int(shard[1])} of {int(shard[2])}")
    return " · ".join(parts)


def left_text(seconds: float) -> str:
    """'40 s left', '8 min left', '3.4 h left'."""
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s left" if seconds < 90 else f"{minutes} min left" if minutes < 90 else f"{minutes / 60:.1f} h left"


def _verified(progress: DownloadProgress | None) -> str:
    return f"{format_bytes(progress.verified_bytes)} compared with their checksums" if progress is not None else ""


def _here(job: DownloadJob) -> str:
    return f"{_amounts(job)} are here" if job.done_bytes else "nothing has arrived yet"


def _amounts(job: DownloadJob) -> str:
    """'21.8 of 63.4 GB'."""
    if not job.total_bytes:
        return format_bytes(job.done_bytes)
    done, total = format_bytes(job.done_bytes), format_bytes(job.total_bytes)
    number, unit = done.split(" ")
    return f"{number} of {total}" if unit == total.split(" ")[1] else f"{done} of {total}"
