"""From the name of a model to a local folder."""

import re
from pathlib import Path

from rich.console import Console

from cluster.models.default_model import DEFAULT_MODEL, DefaultModel, ModelUnavailable
from cluster.setting_sources import expanded
from replica.cache_folders import cache_folders, cache_root, usable

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


def resolve_model(name_or_path: str = DEFAULT_MODEL, console: Console | None = None) -> Path:
    """The local folder of a model; fetches and converts what is missing, with a progress bar on `console`.

    name_or_path: the default model's name, a local folder, or a hub id (owner/name).
    Raises ModelUnavailable. Safe to call from several processes at once, and to interrupt at any time.
    """
    try:
        folder = expanded(name_or_path)
    except ValueError as error:
        raise ModelUnavailable(f"model {error}") from error
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelUnavailable(f"{folder} holds no config.json, so it is no transformers model folder")
        return folder.resolve()
    if name_or_path == DEFAULT_MODEL:
        return DefaultModel(_root_with_default_model(), console).folder()
    if _HUB_ID.fullmatch(name_or_path):
        return _from_hub(name_or_path)
    raise ModelUnavailable(
        f"{name_or_path!r} is neither a folder nor a hub id (owner/name) nor the default model {DEFAULT_MODEL}"
    )


def _root_with_default_model() -> Path:
    """Where it lies, also in a folder that can only be read, as in an image; else where it can be put."""
    folders = cache_folders()
    there = (folder for folder in folders if (folder / "models" / DEFAULT_MODEL).is_dir() or usable(folder))
    return next(there, folders[-1])


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    where = cache_root() / "hub"
    try:
        return Path(snapshot_download(hub_id, cache_dir=where, allow_patterns=list(_HUB_FILES), etag_timeout=10))
    except GatedRepoError as error:
        raise ModelUnavailable(f"{hub_id} is gated: accept its licence on the hub and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelUnavailable(f"the hub has no model {hub_id} (or it is private and HF_TOKEN is not set)") from error
    except Exception as error:  # the hub's client raises its own, httpx's and requests' errors for a lost network
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnavailable(
            f"{hub_id} is not in {where} and the hub cannot be reached ({cause}); "
            "give --model a local folder, or connect and try again"
        ) from error
