"""Messages of `engine.protocol` about models that are not here yet: the catalogue, the Hub, and a plan for one of them."""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.config import Wishes
from engine.protocol_plan import Verdict, WishLimits


class Gate(StrEnum):
    OPEN = "open"
    TERMS = "terms"  # given at once to those who sign in and accept its terms
    REVIEW = "review"  # its makers decide who gets it


class HubSort(StrEnum):
    """As the Hub calls them."""

    DOWNLOADS = "downloads"
    TRENDING = "trendingScore"
    LIKES = "likes"
    UPDATED = "lastModified"


@dataclass(frozen=True, slots=True)
class Release:
    """A model in one weight format: a repository. `bytes` is 0 and `verdict` None where they are not known yet."""

    repo: str
    weight_format: str
    bytes: int
    verdict: Verdict | None = None
    is_about: bool = False  # the bytes are rounded, until the Hub is asked


@dataclass(frozen=True, slots=True)
class HubModel:
    """Parameters are counts, 0 where nobody tells."""

    name: str
    architecture: str
    releases: tuple[Release, ...]  # at least one
    licence: str = ""
    gate: Gate = Gate.OPEN
    total_params: int = 0
    active_params: int = 0  # per token
    downloads: int = 0  # last month
    likes: int = 0


@dataclass(frozen=True, slots=True)
class ListCatalogue:
    """The models that people run, judged for this computer; needs no network. Answered by `HubModels`.

    `folder` is where a download would go, here and below; empty for the Hugging Face cache. `engine_pid` is the process whose
    model the next one would replace, so that its memory counts as free; 0 for none.
    """

    request_id: int
    folder: str = ""
    engine_pid: int = 0


@dataclass(frozen=True, slots=True)
class SearchHub:
    """Models in safetensors whose name holds `text`, without verdicts: ask `PlanFor`. Answered by `HubModels`."""

    request_id: int
    text: str
    sort: HubSort = HubSort.DOWNLOADS
    only_supported: bool = True  # architectures that the engine runs
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PlanFor:
    """Judge a repository by its config.json and headers, some hundred KB. Answered by `RepoPlan`.

    What was read is kept for some minutes, so that other wishes for the same model are answered at once.
    """

    request_id: int
    repo: str  # or the whole path of a model's folder
    folder: str = ""
    token: str = field(default="", repr=False)
    wishes: Wishes = field(default_factory=Wishes)
    engine_pid: int = 0


@dataclass(frozen=True, slots=True)
class ReadCard:
    """What its makers say of a model. Answered by `Card`."""

    request_id: int
    repo: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class HubModels:
    request_id: int
    models: tuple[HubModel, ...]
    ground: str = ""  # of verdicts: what of this computer they were made for, in words


@dataclass(frozen=True, slots=True)
class RepoPlan:
    """`model` has one release, with its size in bytes and its verdict; `limits` are None where it cannot be planned."""

    request_id: int
    model: HubModel
    num_files: int
    limits: WishLimits | None = None
    download_bytes: int = 0  # 0 for a model that is here
    caution: str = ""  # a sentence on what the plan rests on, where it is not the model's own headers


@dataclass(frozen=True, slots=True)
class Card:
    """Markdown without HTML and pictures; cut off where it is very long, empty where there is none."""

    request_id: int
    repo: str
    text: str
