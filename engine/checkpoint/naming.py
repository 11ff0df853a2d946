"""What a model folder is called. Knows the layout of the Hugging Face cache, reads nothing."""

from pathlib import Path

_CACHED = "models--"


def model_name(folder: Path) -> str:
    """The folder's own name; of `models--maker--name/snapshots/COMMIT` the model's.

    Source: huggingface_hub, "Understand caching".
    """
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith(_CACHED):
        return repository.rpartition("--")[2]
    return folder.name
