"""What a layer reads from outside is part of its identity: `fingerprint`.

A function's identity is its code, its defaults, and the *present* values of the globals and closure cells it reads, through every
helper it reaches. Numbers, strings, None, tuples of them, functions, classes of functions and modules have an identity; anything else
(a tensor, a list, an object) is an error that says "pass it as an argument".

Which names a code object reads never changes, so they are found once (`reads_of`). Values are read again at every call: as long as
each is the same object as before, the digest is the same and nothing is hashed.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import importlib
import numbers
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .errors import CapturedValue, described
from .source import loc_at

_MISSING = object()
_FLAGS = 0x3FF  # kind of function; the rest says which `from __future__` its file has
_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"  # bytecode differs between versions
_STDLIB = os.path.normpath(sysconfig.get_paths()["stdlib"])
# Their functions cannot act on values of a layer, and their constants do not change: name and version are their identity.
_LIBRARIES = ("torch", "numpy", "scipy")
_OWN = ("gnnc.frontend", "gnnc.ir", "gnnc.lang", "gnnc.layer")


@dataclass(frozen=True)
class Read:
    """One read of a name: ``kind`` global, cell or import; ``attrs`` the attributes taken from it at once (``mod.const``);
    ``offset`` of the instruction; ``code`` it stands in (the function's or one nested in it)."""

    kind: str
    name: str
    attrs: tuple[str, ...]
    offset: int
    code: types.CodeType


def reads_of(code: types.CodeType) -> tuple[Read, ...]:
    """Every global, closure value and imported name that a function with this code may read, nested functions included."""
    return _reads_of(code, code.co_filename)


# Equal code objects of two files are equal to Python, but their reads have locations: the file is part of the key.
@functools.lru_cache(maxsize=4096)
def _reads_of(code: types.CodeType, file: str) -> tuple[Read, ...]:
    out: dict[tuple[str, str, tuple[str, ...]], Read] = {}
    _collect(code, frozenset(code.co_freevars), out)
    return tuple(out.values())


def _names_in(code: types.CodeType) -> set[str]:
    """Every name in a code object and those nested in it, attributes included."""
    return set(code.co_names).union(*(_names_in(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _collect(code: types.CodeType, free: frozenset[str], out: dict[tuple[str, str, tuple[str, ...]], Read]) -> None:
    ops = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    for n, i in enumerate(ops):
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            kind = "global"
        elif i.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF") and i.argval in free:
            kind = "cell"
        elif i.opname == "IMPORT_NAME":
            _collect_import(code, ops, n, out)
            continue
        else:
            continue
        attrs = []
        for j in ops[n + 1 :]:
            if j.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            attrs.append(j.argval)
        _add(out, Read(kind, i.argval, tuple(attrs), i.offset, code))
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            _collect(const, free & frozenset(const.co_freevars), out)


def _collect_import(code: types.CodeType, ops: list[dis.Instruction], n: int, out: dict[tuple[str, str, tuple[str, ...]], Read]) -> None:
    """``import m`` reads whatever attributes of m the code names; ``from m import a`` reads m.a."""
    i = ops[n]
    level = ops[n - 2].argval if n >= 2 and isinstance(ops[n - 2].argval, int) else 0
    name = "." * level + i.argval
    names = []
    for j in ops[n + 1 :]:
        if j.opname == "IMPORT_FROM":
            names.append(j.argval)
        elif not j.opname.startswith("STORE_"):
            break
    for a in names:
        _add(out, Read("import", name, (a,), i.offset, code))
    if not names:
        _add(out, Read("import", name, (), i.offset, code))


def _add(out: dict[tuple[str, str, tuple[str, ...]], Read], read: Read) -> None:
    out.setdefault((read.kind, read.name, read.attrs), read)


# ---- fingerprints


class Identity:
    """The fingerprint of one function, kept as long as every value behind it reads the same."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._digest = ""
        self._entries: list[tuple[Callable[[], Any], Any]] | None = None

    def digest(self) -> str:
        """sha256 (hex) as of now. Raises CapturedValue for a value that has no identity."""
        if self._entries is None or not all(read() is seen for read, seen in self._entries):
            walk = _Walk()
            walk.value(self._fn, self._fn.__name__)
            self._digest = walk.finish()
            self._entries = walk.entries
        return self._digest


def fingerprint(fn: Callable[..., Any]) -> str:
    """sha256 (hex) of a function's identity as of now; `Identity` for one that is asked often. Raises CapturedValue."""
    return Identity(fn).digest()


class _Walk:
    """Hashes a function and what it reaches; every field is tagged and length-prefixed."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.entries: list[tuple[Callable[[], Any], Any]] = []
        self._seen: dict[int, int] = {}
        self._keep: list[Any] = []
        self._names: set[str] = set()  # in any code reached
        self._opaque: list[tuple[types.ModuleType, str, tuple[types.FunctionType, Read] | None]] = []
        self._site: tuple[types.FunctionType, Read] | None = None

    def put(self, tag: str, data: bytes | str = b"") -> None:
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        self.hash.update(f"{tag}:{len(raw)}:".encode() + raw)

    def watch(self, read: Callable[[], Any], seen: Any) -> None:
        self.entries.append((read, seen))

    # ---- values

    def value(self, v: Any, name: str) -> None:
        """`name`: how the user's code spells it, for the error."""
        if v is None or v is Ellipsis or isinstance(v, str | bytes | numbers.Number):
            self.put(_type_name(v), v if isinstance(v, str | bytes) and type(v) in (str, bytes) else repr(v))
        elif type(v) is tuple or isinstance(v, torch.Size):
            self.put("tuple", str(len(v)))
            for item in v:
                self.value(item, name)
        elif isinstance(v, types.FunctionType):
            self._function(v)
        elif isinstance(v, types.ModuleType):
            if _is_stable_owner(v):
                self._module(v)
            else:
                self._opaque_module(v, name)
        elif isinstance(v, torch.dtype | torch.device):
            self.put("torch", str(v))
        elif _is_own(v):
            self.put("gnnc", f"{_type_name(v)} {getattr(v, '__qualname__', None) or v!r}")
        elif _is_program(v):
            self._program(v, name)
        elif isinstance(v, type):
            self._class(v, name)
        elif isinstance(v, enum.Enum):
            self.put("enum", f"{type(v).__module__}.{type(v).__qualname__}.{v.name}")
            self.value(v.value, name)
        elif isinstance(v, types.BuiltinFunctionType | types.MethodType):
            self._bound(v, name)
        elif isinstance(v, functools.partial):
            self.put("partial", str(len(v.args)))
            for item in (v.func, *v.args, *(x for pair in sorted(v.keywords.items()) for x in pair)):
                self.value(item, name)
        elif isinstance(v, staticmethod | classmethod):
            self.value(v.__func__, name)
        elif isinstance(v, property):
            for f in (v.fget, v.fset, v.fdel):
                self.value(f, name)
        elif _is_library(getattr(v, "__module__", None)) and callable(v) and getattr(v, "__name__", None):
            self.put("library", f"{_library_tag(v.__module__)} {v.__name__}")
        else:
            self._refuse(v, name)

    def _refuse(self, v: Any, name: str) -> None:
        assert self._site is not None or name
        loc, reader = None, name
        if self._site is not None:
            fn, read = self._site
            loc, reader = loc_at(read.code, read.offset, fn.__globals__), fn.__name__
        raise CapturedValue(loc, name=reader, variable=name, what=described(v))

    def _once(self, v: Any) -> bool:
        """Whether `v` is met for the first time; later meetings are a number, so that recursion ends."""
        if id(v) in self._seen:
            self.put("again", str(self._seen[id(v)]))
            return False
        self._seen[id(v)] = len(self._seen)
        self._keep.append(v)
        return True

    # ---- functions

    def _function(self, fn: types.FunctionType) -> None:
        module = fn.__module__
        if _is_own_module(module) or _is_library(module):
            self.put("library", f"{_library_tag(module)} {fn.__qualname__}")
            return
        if not self._once(fn):
            return
        self.put("function", _VERSION)
        self._names |= _names_in(fn.__code__)
        self._code(fn.__code__)
        self.watch(lambda: fn.__code__, fn.__code__)
        self.watch(lambda: fn.__defaults__, fn.__defaults__)
        outer = self._site
        self.value(fn.__defaults__ or (), f"a default of {fn.__name__}")
        for k, d in sorted((fn.__kwdefaults__ or {}).items()):
            self.put("default", k)
            self.value(d, f"the default of {k}")
            self.watch(functools.partial(_kwdefault, fn, k), d)
        for read in reads_of(fn.__code__):
            self._site = fn, read
            self._read(fn, read)
        self._site = outer

    def _read(self, fn: types.FunctionType, read: Read) -> None:
        if read.kind == "global":
            get = functools.partial(_global, fn.__globals__, read.name)
        elif read.kind == "cell":
            get = functools.partial(_cell, fn.__closure__[fn.__code__.co_freevars.index(read.name)])  # type: ignore[index]
        else:
            get = functools.partial(_imported, fn.__globals__.get("__package__"), read.name)
        v = get()
        self.watch(get, v)
        self.put(read.kind, read.name)
        if v is _MISSING:  # a builtin, or a name that does not exist yet
            self.put("missing", "builtin" if hasattr(builtins, read.name) else "")
            return
        self._chain(v, read.name, read)

    def _chain(self, v: Any, spelled: str, read: Read) -> None:
        """Follows attributes through modules and classes, then takes the value reached."""
        attrs = list(read.attrs)
        while attrs and isinstance(v, types.ModuleType | type) and not _is_stable_owner(v):
            attr = attrs.pop(0)
            get = functools.partial(_attribute, v, attr)
            v = get()
            spelled += f".{attr}"
            self.put("attribute", attr)
            if v is _MISSING:
                self.put("missing")
                return
            # Reading a method makes a new object each time, so what is watched is the function.
            self.watch(functools.partial(_stable_attribute, get), _stable(v))
            v = _stable(v)
        self.value(v, spelled)

    def finish(self) -> str:
        """The digest, once what modules used as values (``m = mod``, ``helper(mod)``) may be asked for is in it: every name that any code
        reached mentions and the module has."""
        done: set[tuple[int, str]] = set()
        progress = True
        while progress:
            progress = False
            for module, spelled, site in list(self._opaque):
                for name in sorted(self._names & set(vars(module))):
                    if (id(module), name) in done:
                        continue
                    done.add((id(module), name))
                    progress = True
                    self._site = site
                    self.put("attribute", name)
                    get = functools.partial(_attribute, module, name)
                    v = _stable(get())
                    self.watch(functools.partial(_stable_attribute, get), v)
                    self.value(v, f"{spelled}.{name}")
        return self.hash.hexdigest()

    def _opaque_module(self, module: types.ModuleType, spelled: str) -> None:
        self._module(module)
        if self._once(module):
            self._opaque.append((module, spelled, self._site))

    def _code(self, code: types.CodeType) -> None:
        """Everything that says what the code does; lines and file names do not."""
        self.put("code", code.co_code)
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS
        self.put("shape", repr((counts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)))
        self.put("exceptions", code.co_exceptiontable)
        self.put("consts", str(len(code.co_consts)))
        for c in code.co_consts:
            self._const(c)

    def _const(self, c: Any) -> None:
        if isinstance(c, types.CodeType):
            self._code(c)
        elif isinstance(c, tuple):
            self.put("tuple", str(len(c)))
            for item in c:
                self._const(item)
        elif isinstance(c, frozenset):
            self.put("frozenset", repr(sorted(map(_const_text, c))))
        else:
            self.put("const", _const_text(c))

    # ---- other programs

    def _bound(self, v: types.BuiltinFunctionType | types.MethodType, name: str) -> None:
        owner = v.__self__
        if isinstance(v, types.MethodType) and isinstance(owner, type | types.ModuleType):
            self.put("method", v.__func__.__name__)
            self.value(v.__func__, name)
        elif isinstance(v, types.BuiltinFunctionType) and (owner is None or isinstance(owner, type | types.ModuleType)):
            self.put("builtin", f"{v.__module__} {v.__qualname__}")
        else:
            self._refuse(v, name)

    def _module(self, v: types.ModuleType) -> None:
        self.put("module", _library_tag(v.__name__))

    def _program(self, v: Any, name: str) -> None:
        """A monoid is its class; another layer knows its own identity."""
        if isinstance(getattr(v, "cls", None), type):
            self.put("monoid")
            self._class(v.cls, name)
            return
        owner = v if callable(getattr(v, "fingerprint", None)) else v.function
        digest = sys.intern(owner.fingerprint())
        self.put("program", digest)
        self.watch(lambda: sys.intern(owner.fingerprint()), digest)

    def _class(self, cls: type, name: str) -> None:
        """A class is its bases, its methods and its constants."""
        module = cls.__module__
        if module == "builtins" or _is_library(module) or _is_own_module(module):
            self.put("class", f"{_library_tag(module)} {cls.__qualname__}")
            return
        if not self._once(cls):
            return
        self.put("class", cls.__qualname__)
        self.watch(lambda: len(vars(cls)), len(vars(cls)))
        for base in cls.__bases__:
            self._class(base, name)
        for k, v in sorted(vars(cls).items()):
            dunder = k.startswith("__") and k.endswith("__")
            if isinstance(v, types.GetSetDescriptorType | types.MemberDescriptorType | types.WrapperDescriptorType):
                continue
            if (dunder or issubclass(cls, enum.Enum)) and not isinstance(
                v, types.FunctionType | staticmethod | classmethod | property | enum.Enum
            ):
                continue
            self.put("member", k)
            self.watch(functools.partial(_member, cls, k), v)
            self.value(v, f"{name}.{k}")


# ---- reading


def _global(module_globals: dict[str, Any], name: str) -> Any:
    return module_globals.get(name, _MISSING)


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _imported(package: str | None, name: str) -> Any:
    try:
        return importlib.import_module(name, package)
    except ImportError:
        return _MISSING


def _attribute(owner: Any, name: str) -> Any:
    return getattr(owner, name, _MISSING)


def _stable(v: Any) -> Any:
    """The lasting object behind an attribute: a method bound to its class is made anew at each read, its function is not."""
    return v.__func__ if isinstance(v, types.MethodType) else v


def _stable_attribute(get: Callable[[], Any]) -> Any:
    return _stable(get())


def _member(cls: type, name: str) -> Any:
    return vars(cls).get(name, _MISSING)


def _kwdefault(fn: types.FunctionType, name: str) -> Any:
    return (fn.__kwdefaults__ or {}).get(name, _MISSING)


# ---- whose is it


def _type_name(v: Any) -> str:
    return type(v).__qualname__


def _const_text(c: Any) -> str:
    return f"{_type_name(c)} {c!r}"


def _is_own_module(name: object) -> bool:
    return isinstance(name, str) and any(name == own or name.startswith(own + ".") for own in _OWN)


def _is_own(v: Any) -> bool:
    """The vocabulary: functions and classes of the front end, and the values of its classes that say all in their repr."""
    if isinstance(v, type):
        return _is_own_module(v.__module__) and not hasattr(v, "to_ir")
    return type(v).__module__ in ("gnnc.frontend.annotations", "gnnc.ir.types")


@functools.lru_cache(maxsize=1024)
def _is_library(name: str | None) -> bool:
    """Whether a module belongs to Python itself or to a library whose functions are identified by version."""
    if not isinstance(name, str):
        return False
    top = name.partition(".")[0]
    if top in _LIBRARIES or top == "builtins":
        return True
    if top not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(top), "__file__", None)  # a user's module may have the name of one of Python's
    return file is None or os.path.normpath(file).startswith(_STDLIB + os.sep)


def _is_program(v: Any) -> bool:
    """A user's monoid (`to_ir`), or another layer (it, or its ``function``, has a `fingerprint`)."""
    if isinstance(v, type):
        return False
    return callable(getattr(v, "to_ir", None)) or any(callable(getattr(x, "fingerprint", None)) for x in (v, getattr(v, "function", None)))


def _is_stable_owner(v: Any) -> bool:
    name = v.__name__ if isinstance(v, types.ModuleType) else v.__module__
    return _is_library(name) or _is_own_module(name)


def _library_tag(name: str) -> str:
    """Name and version of the distribution's top module."""
    version = getattr(sys.modules.get(name.partition(".")[0]), "__version__", "")
    return f"{name} {version}"
