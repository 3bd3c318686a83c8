"""The disk cache: keys, verified reads, atomic writes, many processes, places that cannot be written."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnc_runtime.cache import CacheKey, DiskCache, cache_directory, default_cache, explain_difference

KEY = CacheKey("1", "c0ffee", "func f {\n  %0 = add\n}", "x: src<f32, 4>", "znver4", "")
FILES = {"plan.json": b"{}", "k.so": bytes(range(256)) * 20}


# ---- keys


def test_digest_is_the_full_sha256_of_length_prefixed_fields() -> None:
    texts = ["schema", "1", "compiler", "c0ffee", "ir", KEY.ir, "signature", "x: src<f32, 4>", "target", "znver4", "options", ""]
    data = b"".join(len(t).to_bytes(8, "little") + t.encode() for t in texts)
    assert KEY.digest == hashlib.sha256(data).hexdigest()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("ab", max_size=3), min_size=6, max_size=6), st.lists(st.text("ab", max_size=3), min_size=6, max_size=6))
def test_digests_differ_exactly_when_keys_do(a: list[str], b: list[str]) -> None:
    assert (CacheKey(*a).digest == CacheKey(*b).digest) == (a == b)


def test_explain_difference() -> None:
    other = replace(KEY, ir="func f {\n  %0 = sub\n}", target="skylake")
    assert explain_difference(KEY, KEY) == ""
    assert explain_difference(KEY, other) == (
        "ir differs:\n  --- first\n  +++ second\n  @@ -1,3 +1,3 @@\n   func f {\n  -  %0 = add\n  +  %0 = sub\n   }\n"
        "target: 'znver4' and 'skylake'"
    )


# ---- entries


def test_round_trip(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "a" / "b")
    assert cache.get(KEY) is None and cache.path(KEY) is None
    assert not (tmp_path / "a").exists()  # reading makes nothing
    folder = cache.put(KEY, FILES)
    assert folder == cache.path(KEY) == tmp_path / "a" / "b" / KEY.digest
    assert cache.get(KEY) == FILES
    assert cache.get(replace(KEY, options="fast")) is None
    assert [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a", tmp_path / "a" / "b", folder)] == [0o700] * 3
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["key"]["target"] == "znver4"


def test_a_valid_entry_is_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    folder = cache.put(KEY, FILES)
    inode = (folder / "k.so").stat().st_ino
    assert cache.put(KEY, {"k.so": b"other"}) == folder
    assert cache.get(KEY) == FILES and (folder / "k.so").stat().st_ino == inode
    assert os.listdir(tmp_path) == [KEY.digest]


def truncate(folder: Path) -> None:
    (folder / "k.so").write_bytes(FILES["k.so"][:-1])


def flip(folder: Path) -> None:
    data = bytearray(FILES["k.so"])
    data[1000] ^= 1
    (folder / "k.so").write_bytes(data)


def other_key(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace("znver4", "znver5"))


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def bad_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('["not", "a", "manifest"]')


def lost_file(folder: Path) -> None:
    (folder / "k.so").unlink()


def outside(folder: Path) -> None:
    m = json.loads((folder / "manifest.json").read_text())
    m["files"] = {"../outside": m["files"]["plan.json"]}
    (folder.parent / "outside").write_bytes(b"{}")
    (folder / "manifest.json").write_text(json.dumps(m))


@pytest.mark.parametrize("damage", [truncate, flip, other_key, no_manifest, bad_manifest, lost_file, outside])
def test_a_damaged_entry_is_a_miss_and_is_replaced(tmp_path: Path, damage: Any) -> None:
    cache = DiskCache(tmp_path / "c")
    damage(cache.put(KEY, FILES))
    assert cache.get(KEY) is None and cache.path(KEY) is None
    cache.put(KEY, FILES)
    assert cache.get(KEY) == FILES
    assert not list((tmp_path / "c").glob(".tmp-*"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "manifest.json"])
def test_file_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError) as e:
        DiskCache(tmp_path).put(KEY, {name: b""})
    assert str(e.value) == f"{name!r} cannot be the name of a file in a cache entry"
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        DiskCache(tmp_path).put(KEY, {"a": b"1", "b": "text"})  # type: ignore[dict-item]
    assert os.listdir(tmp_path) == []


def test_folders_of_killed_writers_are_removed(tmp_path: Path) -> None:
    for name, age in (("old", 2 * 86400), ("new", 60)):
        (tmp_path / f".tmp-{name}").mkdir()
        then = time.time() - age
        os.utime(tmp_path / f".tmp-{name}", (then, then))
    DiskCache(tmp_path).put(KEY, FILES)
    assert sorted(p.name for p in tmp_path.glob(".tmp-*")) == [".tmp-new"]


# ---- many processes


def compile_once(directory: Path, barrier: Any, out: Any, rounds: int) -> None:
    for r in range(rounds):
        key, cache, compiled = replace(KEY, options=str(r)), DiskCache(directory), 0
        barrier.wait(60)
        found = cache.get(key)
        if found is None:
            with cache.lock(key):
                found = cache.get(key)
                if found is None:
                    compiled = 1
                    found = {"k.so": b"%d" % r * 1000}
                    cache.put(key, found)
        out.put((r, compiled, found == {"k.so": b"%d" % r * 1000}))


def put_at_once(directory: Path, barrier: Any, out: Any, rounds: int) -> None:
    """Without the lock: all write."""
    for r in range(rounds):
        key = replace(KEY, options=str(r))
        barrier.wait(60)
        DiskCache(directory).put(key, FILES)
        out.put((r, 1, DiskCache(directory).get(key) == FILES))


@pytest.mark.parametrize(("work", "compilations"), [(compile_once, 1), (put_at_once, 8)])
def test_eight_processes_and_an_empty_directory(tmp_path: Path, work: Any, compilations: int) -> None:
    """R28."""
    rounds, context = 20, multiprocessing.get_context("fork")
    barrier, out = context.Barrier(8), context.SimpleQueue()
    directory = tmp_path / "cache"
    processes = [context.Process(target=work, args=(directory, barrier, out, rounds)) for _ in range(8)]
    for p in processes:
        p.start()
    results = [out.get() for _ in range(8 * rounds)]
    for p in processes:
        p.join(60)
    assert [p.exitcode for p in processes] == [0] * 8
    assert all(good for _, _, good in results)
    for r in range(rounds):
        assert sum(compiled for n, compiled, _ in results if n == r) == compilations
    names = {replace(KEY, options=str(r)).digest for r in range(rounds)}
    assert {p.name for p in directory.iterdir()} - {"locks"} == names


# ---- where

SCRIPT = """
import os, sys, warnings
from gnnc_runtime.cache import CacheKey, default_cache
key = CacheKey("1", "", "", "", "", "")
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    for n in range(3):
        k = CacheKey("1", "", "", "", "", str(n))
        with default_cache().lock(k):
            default_cache().put(k, {"a": b"1"})
        assert default_cache().get(k) == {"a": b"1"}
folder = default_cache().path(k).parent
if os.fork() == 0:
    sys.exit()
os.wait()
print(len(found), folder, folder.exists())
for w in found: print(w.category.__name__, w.message)
"""


def in_process(**env: str) -> list[str]:
    base = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "GNNC_CACHE_DIR")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=base | env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_missing_home(tmp_path: Path) -> None:
    """R31: works, with one warning; the temporary directory goes with the process, not with a forked child."""
    home = tmp_path / "absent"
    first, warning = in_process(HOME=str(home))
    count, folder, there = first.split()
    assert (count, there) == ("1", "True") and not Path(folder).exists() and not home.exists()
    assert warning == (
        f"RuntimeWarning gnnc cannot write its cache {home}/.cache/gnnc (No such file or directory): compiled code is kept in a temporary "
        "directory and lost at exit; set GNNC_CACHE_DIR to a directory that can be written"
    )


def test_a_chosen_directory(tmp_path: Path) -> None:
    assert in_process(HOME="/nonexistent", GNNC_CACHE_DIR=str(tmp_path / "chosen")) == [f"0 {tmp_path}/chosen True"]
    assert (tmp_path / "chosen").is_dir()


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first, warning = in_process(GNNC_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert first.startswith("1 ") and first.endswith(" True")
    assert warning == (
        f"RuntimeWarning gnnc cannot write its cache {tmp_path}/file/cache (File exists): compiled code is kept in a temporary "
        "directory and lost at exit; set GNNC_CACHE_DIR to a directory that can be written"
    )


def test_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GNNC_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "gnnc"
    monkeypatch.setenv("GNNC_CACHE_DIR", str(tmp_path / "mine"))
    assert default_cache().directory == tmp_path / "mine"
    assert default_cache() is default_cache()
