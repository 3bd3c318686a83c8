"""Where in the user's source we are: exact line and columns of the expression that is being traced.

The innermost frame outside of this package belongs to the user (the layer or a helper it calls); its code object knows the
columns of every instruction. Text comes from ``linecache``; where there is none (a REPL, ``exec``, ``python -c``) the location has
file and line only.
"""

from __future__ import annotations

import dis
import linecache
import os
import sys
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import numpy
import torch

from gnnc.ir.core import Loc

_NOT_USERS = tuple(os.path.dirname(os.path.abspath(f or "")) + os.sep for f in (__file__, torch.__file__, numpy.__file__))


def source_line(file: str, line: int, module_globals: dict[str, Any] | None = None) -> str:
    """Line `line` (1-based) of `file` without its line end; "" where no text is known."""
    return linecache.getline(file, line, module_globals).rstrip("\r\n\f")


def char_column(text: str, byte_column: int) -> int:
    """Column in characters of a column in UTF-8 bytes, which is what code objects and ``ast`` count."""
    return byte_column if text.isascii() else len(text.encode()[:byte_column].decode(errors="ignore"))


def make_loc(file: str, line: int, col: int | None, end_line: int | None, end_col: int | None, text: str) -> Loc:
    """A location from byte columns; without text or columns it is file and line alone."""
    if not text or col is None or end_col is None or col > len(text.encode()):
        return Loc(file, line, text=text)
    end_text = text if end_line in (None, line) else source_line(file, end_line or line)
    return Loc(file, line, char_column(text, col), end_line or line, char_column(end_text, end_col), text)


# Instructions that test or iterate the value before them, and may carry the position of the whole statement.
_OF_STATEMENT = {*dis.hasjrel, *dis.hasjabs, dis.opmap["GET_ITER"]}

Position = tuple[int | None, int | None, int | None, int | None]


# Equal code objects of two files are equal to Python, so the file is part of the key.
@lru_cache(maxsize=4096)
def _positions(code: CodeType, file: str, lasti: int) -> Position:
    at: Position = next(islice(code.co_positions(), lasti // 2, None), (None, None, None, None))
    if at[0] is not None and at[1] is not None and at[1] > at[0] and lasti >= 2 and code.co_code[lasti] in _OF_STATEMENT:
        return next(islice(code.co_positions(), lasti // 2 - 1, None))
    return at


@lru_cache(maxsize=4096)
def _loc(code: CodeType, file: str, lasti: int, text: str) -> Loc:
    line, end_line, col, end_col = _positions(code, file, lasti)
    return make_loc(file, line or code.co_firstlineno, col, end_line, end_col, text)


def loc_at(code: CodeType, lasti: int, module_globals: dict[str, Any] | None = None) -> Loc:
    """The location of the instruction at byte offset `lasti`."""
    file = code.co_filename
    line = _positions(code, file, lasti)[0] or code.co_firstlineno
    return _loc(code, file, lasti, source_line(file, line, module_globals))


def user_frame() -> FrameType | None:
    """The innermost frame outside of this package, torch and numpy (whose functions call back into traced values)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    return frame


def user_loc() -> Loc | None:
    """The user's expression that is being evaluated; None when no user frame is on the stack."""
    frame = user_frame()
    return None if frame is None else loc_at(frame.f_code, frame.f_lasti, frame.f_globals)
