"""A folder on any store that fsspec knows, as it lies there: the log, or the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs


class Folder:
    """Listings and contents of one folder. Every method raises `OSError` if the store cannot be read."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        # Another process writes what is listed here, so that a cached listing would be a wrong one.
        self._files, self._root = url_to_fs(url, use_listings_cache=False, **(options or {}))

    def names(self, name: str) -> list[str]:
        """The names that lie directly in a folder below this one; an empty list where there is no such folder.

        Names that begin with a dot are left out: files get such names while they are written.
        """
        try:
            found = self._files.ls(f"{self._root}/{name}", detail=False)
        except FileNotFoundError:  # an object store has no empty folders: a missing one holds nothing
            return []
        names = (str(path).rpartition("/")[2] for path in found)
        return [each for each in names if not each.startswith(".")]

    def read(self, name: str) -> bytes:
        """The content of one file."""
        content: bytes = self._files.cat_file(f"{self._root}/{name}")
        return content

    def copy_to(self, folder: Path) -> None:
        """Copy every file to a local folder."""
        for found in self._files.find(self._root):
            path = folder / str(found).removeprefix(self._root).lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._files.cat_file(found))
