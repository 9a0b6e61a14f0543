"""Creating an object once, and knowing afterwards which process made it, even after an error.

An error of a create does not say whether the object was made: a lost answer, a retry that met its own object and a true
loss look the same. Every object holds its writer's unique id, so reading it back decides.
"""

from __future__ import annotations

from wal_sink.errors import OutcomeUnknownError, StoreError
from wal_sink.runtime.clock import Runtime
from wal_sink.stores.base import ObjectMissing, Store

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


def create_once(store: Store, path: str, data: bytes, *, runtime: Runtime, attempts: int = 5) -> bool:
    """Create `path` with `data`, which must hold an id that no other writer uses.

    Returns True if the object there is the caller's, False if it is another's; it never overwrites or deletes anything.
    Raises `StoreError` if there is still no object after `attempts` tries, `OutcomeUnknownError` if it cannot be read
    back after a failed create. Errors that no repetition can change (`ConfigError`) pass through.
    """
    for attempt in range(1, attempts + 1):
        try:
            store.create(path, data)
        except StoreError as error:
            found = _read_back(store, path, error)
            if found is not None:
                return found == data
            if attempt == attempts:
                raise StoreError(
                    f"{store.url_of(path)} could not be created in {attempts} attempts and is absent; the last answer "
                    f"was: {error}. Correct the cause of this answer, then start the query or command again"
                ) from error
            runtime.sleep_s(min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S))
        else:
            return True
    raise ValueError(f"attempts={attempts}: expected at least 1")


def _read_back(store: Store, path: str, cause: StoreError) -> bytes | None:
    try:
        return store.read(path)
    except ObjectMissing:
        return None
    except StoreError as error:
        raise OutcomeUnknownError(
            f"{store.url_of(path)} may or may not have been created: the create answered “{cause}”, and the object "
            f"could not be read back: “{error}”. Nothing was deleted. Make the store reachable, then start the query "
            "or command again: it reads the object"
        ) from error
