"""The disk cache of compiled artifacts: one folder a key, written whole or not at all, verified whenever it is read.

Layout: ``<cache>/<sha256 of the key>/`` holds the files of an entry and ``manifest.json`` (the key in full, size and sha256 of every file).
Writers build an entry in a private temporary folder and rename it; a valid entry is never replaced, so its paths stay good.
``GNNC_CACHE_DIR`` says where; the default is the user's cache directory. Where that cannot be written, a temporary directory of this
process takes its place, with one warning.
"""

from __future__ import annotations

import atexit
import difflib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import platformdirs
from filelock import FileLock

MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
STALE_SECONDS = 24 * 3600  # a temporary folder this old belongs to a process that was killed


@dataclass(frozen=True)
class CacheKey:
    """All that a compiled artifact depends on, as text. ``compiler``: digest of the compiler's sources. ``ir``: canonical IR text without
    locations."""

    schema: str
    compiler: str
    ir: str
    signature: str
    target: str
    options: str

    @property
    def digest(self) -> str:
        """sha256 (hex) over the length-prefixed fields: no two different keys run together."""
        h = hashlib.sha256()
        for f in fields(self):
            for text in (f.name, getattr(self, f.name)):
                data = text.encode()
                h.update(len(data).to_bytes(8, "little") + data)
        return h.hexdigest()


def explain_difference(a: CacheKey, b: CacheKey) -> str:
    """Why two keys differ: one paragraph a field, a diff where the field has lines. Empty for equal keys."""
    out = []
    for f in fields(CacheKey):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if x == y:
            continue
        if "\n" in x or "\n" in y:
            diff = difflib.unified_diff(x.splitlines(), y.splitlines(), "first", "second", lineterm="", n=1)
            out.append("\n".join([f"{f.name} differs:", *(f"  {line}" for line in diff)]))
        else:
            out.append(f"{f.name}: {x!r} and {y!r}")
    return "\n".join(out)


class DiskCache:
    """Artifacts by `CacheKey` under `directory`. Any number of processes and threads may share one.

    Nothing is created before the first write. OSError is not raised for a directory that cannot be used: see the module.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._swept = False

    def get(self, key: CacheKey) -> dict[str, bytes] | None:
        """The files of an entry by name, or None. A truncated, changed or foreign entry is none."""
        for root in self._roots():
            found = _read(root / key.digest, key)
            if found is not None:
                return found
        return None

    def path(self, key: CacheKey) -> Path | None:
        """The folder of a valid entry, or None."""
        for root in self._roots():
            if _read(root / key.digest, key) is not None:
                return root / key.digest
        return None

    def put(self, key: CacheKey, files: Mapping[str, bytes]) -> Path:
        """Stores an entry and returns its folder. A valid entry that is there already is kept, an invalid one replaced.

        ValueError for a file name that is no plain name.
        """
        for name in files:
            if name in ("", ".", "..", MANIFEST) or Path(name).name != name:
                raise ValueError(f"{name!r} cannot be the name of a file in a cache entry")
        root = self._writable()
        try:
            return self._write(root, key, files)
        except OSError as e:
            if root != self.directory:
                raise
            return self._write(_fallback(self.directory, e), key, files)

    @contextmanager
    def lock(self, key: CacheKey) -> Iterator[None]:
        """Held by one process and thread at a time, so that one of many compiles an entry. Where the file system has no locks, nobody
        waits and all compile; entries stay whole."""
        lock = None
        with suppress(OSError, NotImplementedError):
            folder = self._writable() / "locks"
            folder.mkdir(mode=0o700, exist_ok=True)
            lock = FileLock(folder / f"{key.digest}.lock", mode=0o600)
            lock.acquire()
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    # ---- where

    def _roots(self) -> list[Path]:
        return [self.directory] if _temporary is None else [self.directory, _temporary.path]

    def _writable(self) -> Path:
        """The directory to write to, made if need be."""
        try:
            _make_private(self.directory)
            if not os.access(self.directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.directory))
        except OSError as e:
            return _fallback(self.directory, e)
        return self.directory

    # ---- writing

    def _write(self, root: Path, key: CacheKey, files: Mapping[str, bytes]) -> Path:
        if not self._swept:
            self._swept = True
            _remove_stale(root)
        final = root / key.digest
        made = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=root))  # mode 0700
        try:
            for name, data in files.items():
                (made / name).write_bytes(data)
            (made / MANIFEST).write_bytes(_manifest(key, files))
            while not _rename(made, final):
                if _read(final, key) is not None:  # another was first
                    break
                # Moved aside in one step: at no moment does a reader see half an entry.
                aside = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=root))
                with suppress(OSError):
                    os.rename(final, aside / "invalid")
                shutil.rmtree(aside, ignore_errors=True)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return final


def _rename(made: Path, final: Path) -> bool:
    """Whether `made` could take the place `final`; False where something is there."""
    try:
        os.rename(made, final)
    except OSError:
        if final.exists():
            return False
        raise
    return True


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _manifest(key: CacheKey, files: Mapping[str, bytes]) -> bytes:
    table = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()}
    return json.dumps({"key": asdict(key), "files": table}, sort_keys=True, indent=1).encode()


def _read(folder: Path, key: CacheKey) -> dict[str, bytes] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["key"] != asdict(key):
            return None
        out = {}
        for name, want in manifest["files"].items():
            data = (folder / name).read_bytes()
            if Path(name).name != name or len(data) != want["bytes"] or _sha256(data) != want["sha256"]:
                return None
            out[name] = data
        return out
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _make_private(directory: Path) -> None:
    """Makes a directory and those above it that lack, for this user alone. A home that does not exist is not made."""
    home = Path(os.path.expanduser("~"))
    if directory.is_relative_to(home) and not home.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(home))
    if not directory.is_dir():
        for parent in reversed([directory, *directory.parents]):
            if not parent.is_dir():
                parent.mkdir(mode=0o700, exist_ok=True)


def _remove_stale(root: Path) -> None:
    with suppress(OSError):
        for path in root.glob(f"{TEMPORARY}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


# ---- a directory of this process


@dataclass(frozen=True)
class _Temporary:
    path: Path
    pid: int

    def remove(self) -> None:
        if os.getpid() == self.pid:  # a forked child still uses its parent's
            shutil.rmtree(self.path, ignore_errors=True)


_temporary: _Temporary | None = None
_temporary_lock = threading.Lock()


def _fallback(wanted: Path, why: OSError) -> Path:
    global _temporary
    with _temporary_lock:
        if _temporary is None:
            _temporary = _Temporary(Path(tempfile.mkdtemp(prefix="gnnc-")), os.getpid())
            atexit.register(_temporary.remove)
            warnings.warn(
                f"gnnc cannot write its cache {wanted} ({why.strerror or why}): compiled code is kept in a temporary directory and lost "
                "at exit; set GNNC_CACHE_DIR to a directory that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
        return _temporary.path


# ---- the process's cache

_caches: dict[Path, DiskCache] = {}


def cache_directory() -> Path:
    """``GNNC_CACHE_DIR``, else gnnc's folder in the user's cache directory."""
    chosen = os.environ.get("GNNC_CACHE_DIR")
    return Path(chosen).absolute() if chosen else Path(platformdirs.user_cache_dir("gnnc", appauthor=False))


def default_cache() -> DiskCache:
    """The cache that layers use. ``GNNC_CACHE_DIR`` is read at each call."""
    directory = cache_directory()
    return _caches.setdefault(directory, DiskCache(directory))
