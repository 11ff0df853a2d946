"""Words and figures of models, jobs and the library, from values alone."""

from dataclasses import replace

import pytest

from app.core.download_words import job_words, left_text
from app.core.library_words import state_words, used_text
from app.core.verdicts import best_release, gain_text, in_format, recommended, size_text, sort_models, speed_text, subtitle
from app.pages.chat.loading_bar import progress_in_words
from engine.protocol import (
    Change,
    DownloadJob,
    DownloadProgress,
    DownloadState,
    Fit,
    Gain,
    Gate,
    HubModel,
    ModelEntry,
    ModelState,
    Plan,
    Progress,
    Release,
    Verdict,
)

GB = 10**9
JOB = DownloadJob("maker/Model", "main", "", DownloadState.RUNNING, 63_400_000_000, 21_800_000_000)


def plan(*gains: Gain) -> Plan:
    return Plan("", "", "", 1, 1, 1, 1, (1,), 0, 0, 0, 0, 0, 0, "", gains=gains)


def model(name: str, *releases: tuple[str, int, Fit, float]) -> HubModel:
    """(format, GB, fit, best tokens/s)"""
    return HubModel(
        name, "mixtral",
        tuple(Release(f"m/{name}-{form}", form, size * GB, Verdict(fit, "", (rate / 2, rate))) for form, size, fit, rate in releases),
    )  # fmt: skip


def test_the_release_that_suits_this_computer() -> None:
    both_fit = model("a", ("FP8", 30, Fit.RAM, 20), ("BF16", 60, Fit.RAM, 10))
    assert best_release(both_fit).weight_format == "BF16", "in memory the larger one is the better one"
    both_stream = model("b", ("BF16", 60, Fit.DISK, 2), ("FP8", 30, Fit.DISK, 5))
    assert best_release(both_stream).weight_format == "FP8"
    one_fits = model("c", ("BF16", 60, Fit.DISK, 2), ("FP8", 30, Fit.RAM, 5))
    assert best_release(one_fits).weight_format == "FP8"
    neither = model("d", ("BF16", 60, Fit.NO_SPACE, 2), ("FP8", 30, Fit.DISK, 5))
    assert best_release(neither).verdict.fit is Fit.DISK  # type: ignore[union-attr]


def test_order_and_filter() -> None:
    slow, fast = model("slow", ("FP8", 10, Fit.DISK, 1)), model("fast", ("BF16", 90, Fit.RAM, 30))
    no = model("alas", ("BF16", 5, Fit.UNSUPPORTED, 99))
    every = (slow, no, fast)
    assert [item.name for item in sort_models(every, "speed")] == ["fast", "slow", "alas"]
    assert [item.name for item in sort_models(every, "size")] == ["alas", "slow", "fast"]
    assert [item.name for item in sort_models(every, "name")] == ["alas", "fast", "slow"]
    assert sort_models(every, "downloads") == every
    assert recommended(every) == (slow, fast)
    assert in_format(every, "FP8") == (slow,)


def test_figures_of_a_verdict() -> None:
    verdict = Verdict(Fit.DISK, "", (6.1, 10.8), plan=plan(Gain(Change.RAM, "20 GB more RAM", 20 * GB, (16.4, 21.0))))
    assert speed_text(verdict) == "6–11"
    assert gain_text(verdict) == "With 20 GB more RAM: 16–21 tokens/s instead of 6–11."
    assert gain_text(replace(verdict, plan=plan(Gain(Change.RAM, "8 GB more RAM", 8 * GB, (6.2, 10.9))))) == "", (
        "no gain is no sentence"
    )
    assert speed_text(replace(verdict, fit=Fit.NO_SPACE)) == ""
    assert speed_text(None) == ""


def test_subtitle() -> None:
    entry = replace(
        model("x", ("FP8", 10, Fit.DISK, 1)), total_params=30_500_000_000, active_params=3_300_000_000, licence="apache-2.0"
    )
    assert subtitle(entry) == "30.5B, 3.3B active · Apache-2.0"
    assert subtitle(replace(entry, active_params=0, gate=Gate.TERMS, downloads=1_234_567)) == (
        "30.5B parameters · Apache-2.0 · sign-in and terms · 1.2M downloads a month"
    )


@pytest.mark.parametrize(
    ("job", "text", "color"),
    [
        (replace(JOB, state=DownloadState.PAUSED), "Paused · 21.8 of 63.4 GB are here", "warn"),
        (replace(JOB, state=DownloadState.WAITING, done_bytes=0), "Waiting for its turn · nothing has arrived yet", "muted"),
        (replace(JOB, state=DownloadState.DONE), "Verified · 63.4 GB", "ok"),
        (replace(JOB, state=DownloadState.FAILED, text="It is full.", hint="Free some."), "It is full. Free some.", "bad"),
        (replace(JOB, text="Nothing came for 30 s: trying again."), "Nothing came for 30 s: trying again.", "warn"),
        (replace(JOB, total_bytes=0, done_bytes=0), "Asking the Hub what there is…", "accent"),
    ],
)  # fmt: skip
def test_words_of_a_job(job: DownloadJob, text: str, color: str) -> None:
    words = job_words(job, None)
    assert (words.text, words.color) == (text, color)


def test_a_rate_is_shown_only_while_it_is_known() -> None:
    progress = DownloadProgress(1, JOB, "model-00006-of-00015.safetensors", 20 * GB, 84e6, 495.0)
    assert job_words(JOB, progress).text == "21.8 of 63.4 GB · 84.0 MB/s · 8 min left · shard 6 of 15"
    frozen = replace(progress, bytes_per_second=None, seconds_left=None, file="config.json")
    assert job_words(JOB, frozen).text == "21.8 of 63.4 GB"
    assert job_words(JOB, progress).share == pytest.approx(21.8 / 63.4)
    assert [left_text(seconds) for seconds in (40, 500, 12_000)] == ["40 s left", "8 min left", "3.3 h left"]


def test_words_of_the_library() -> None:
    entry = ModelEntry("m", "/m", "mixtral", "BF16", 1, state=ModelState.AWAY, problem="/m is not available.")
    assert state_words(entry) == ("Drive not available", "warn")
    assert state_words(replace(entry, state=ModelState.UNVERIFIED, problem="No llama.")) == ("Cannot be loaded", "bad")
    assert state_words(replace(entry, state=ModelState.WHOLE, problem="")) == ("Verified", "ok")
    day = 86_400.0
    now = 1_764_500_000.0
    assert [used_text(seconds, now) for seconds in (0, now, now - day, now - 9 * day, now - 200 * day)] == [
        "not used yet", "used today", "used yesterday", "used 9 days ago", "used 6 months ago",
    ]  # fmt: skip


def test_a_size_that_is_rounded_says_so() -> None:
    assert size_text(Release("m/a", "FP8", 31_200_000_000, is_about=True)) == "FP8 · about 31.2 GB"
    assert size_text(Release("m/a", "FP8", 31_200_000_000)) == "FP8 · 31.2 GB"
    assert size_text(Release("m/a", "FP8", 0, is_about=True)) == "FP8"


def test_loading_tells_bytes_as_bytes_and_parts_as_a_share() -> None:
    def told(stage: str, done: int, total: int) -> str:
        return progress_in_words("model", Progress(1, stage, done, total))

    assert progress_in_words("model", None) == "Loading model"
    assert told("Reading the dense weights", 0, 0) == "Loading model: reading the dense weights"
    assert told("Reading the dense weights", 600_000_000, GB) == "Loading model: reading the dense weights, 600 MB of 1.00 GB"
    assert told("Measuring this computer", 12, 35) == "Loading model: measuring this computer, 34 %"
