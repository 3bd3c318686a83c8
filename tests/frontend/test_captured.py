"""Values read from outside are part of a layer's identity: a change is seen at the next call."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types

import pytest

from gnnc.frontend.captured import Identity, fingerprint, reads_of
from gnnc.ir.types import F32, Type

from .snippets import Module

X = Type("src", F32, (4,))
LAYER = '@layer\ndef f(g, x: Src["F"]):\n    return {body}\n'


def module(folder, before="", body="x"):
    return Module(folder, before + LAYER.format(body=body)).run()


def slopes(m):
    return [v.attr("slope") for v in m.f.trace_types([X], {}, F32).body if v.op == "leaky_relu"]


def test_r23_a_changed_constant_is_seen_at_the_next_call(tmp_path):
    m = module(tmp_path, "SLOPE = 0.1\n", "leaky_relu(x, SLOPE)")
    before = m.f.fingerprint()
    assert slopes(m) == [0.1]
    m.names["SLOPE"] = 0.5
    assert m.f.fingerprint() != before and slopes(m) == [0.5]
    m.names["SLOPE"] = 0.1
    assert m.f.fingerprint() == before and slopes(m) == [0.1]


# before the layer, its body, a change of the module's names that must be seen, one that must not
CHANGES = {
    "number": ("A = 1.0\n", "x * A", "A = 2.0", "B = 2.0"),
    "kind of number": ("A = 1\n", "x * A", "A = 1.0", "A = 1"),
    "sign of zero": ("A = 0.0\n", "x * A", "A = -0.0", "A = 0.0"),
    "nan": ("A = 1.0\n", "x * A", "A = float('nan')", "A = 1.0"),
    "string": ("A = 'sum'\n", "getattr(g, A)(g.src(x))", "A = 'max'", "B = 'max'"),
    "None": ("A = 1.0\n", "x if A is None else x * A", "A = None", "pass"),
    "tuple": ("A = (1, (2.0, 'a'))\n", "x * A[0]", "A = (1, (2.5, 'a'))", "A = (1, (2.0, 'a'))"),
    "tuple nesting": ("A = ((1,), 2)\n", "x * len(A)", "A = (1, (2,))", "pass"),
    "bool": ("A = True\n", "x if A else -x", "A = False", "pass"),
    "helper": ("def h(v): return v * 2\n", "h(x)", "def h(v): return v * 3", "pass"),
    "helper, same text": ("def h(v): return v * 2\n", "h(x)", "h = lambda v: -v", "def h(v): return v * 2"),
    "constant of a helper": ("A = 1.0\ndef h(v): return v * A\n", "h(x)", "A = 2.0", "C = 2.0"),
    "helper of a helper": ("A = 1.0\ndef k(v): return v * A\ndef h(v): return k(v)\n", "h(x)", "A = 2.0", "pass"),
    "default": ("def h(v, a=1.0): return v * a\n", "h(x)", "h.__defaults__ = (2.0,)", "pass"),
    "keyword default": ("def h(v, *, a=1.0): return v * a\n", "h(x)", "h.__kwdefaults__['a'] = 2.0", "pass"),
    "code": ("def h(v): return v * 1\ndef k(v): return v * 2\n", "h(x)", "h.__code__ = k.__code__", "pass"),
    "recursion": (
        "A = 3\ndef h(v, n): return v if n == 0 else k(v, n - 1)\ndef k(v, n): return h(v * A, n)\n",
        "h(x, 2)",
        "A = 4",
        "pass",
    ),
    "lambda in the body": ("A = 1.0\n", "(lambda v: v * A)(x)", "A = 2.0", "pass"),
    "comprehension in the body": ("A = 1.0\n", "sum([x * A for _ in range(2)], x)", "A = 2.0", "pass"),
    "attribute of a module": ("import types\nm = types.ModuleType('m')\nm.A = 1.0\nm.B = [0]\n", "x * m.A", "m.A = 2.0", "m.B = 2.0"),
    "attribute of a module in a module": (
        "import types\nm = types.ModuleType('m')\nm.n = types.ModuleType('n')\nm.n.A = 1.0\n",
        "x * m.n.A",
        "m.n.A = 2.0",
        "m.A = 2.0",
    ),
    "function of a module": (
        "import types\nm = types.ModuleType('m')\nm.h = lambda v: v * 1\n",
        "m.h(x)",
        "m.h = lambda v: v * 2",
        "m.k = 1",
    ),
    "module by another name": ("import types\nm = types.ModuleType('m')\nm.A = 1.0\n", "x * (lambda q: q.A)(m)", "m.A = 2.0", "pass"),
    "module handed to a helper": (
        "import types\nm = types.ModuleType('m')\nm.A = 1.0\nm.B = [0]\ndef h(q): return q.A\n",
        "x * h(m)",
        "m.A = 2.0",
        "m.B = [1]",
    ),
    "module in a tuple": ("import types\nm = types.ModuleType('m')\nm.A = 1.0\nT = (m,)\n", "x * T[0].A", "m.A = 2.0", "pass"),
    "class attribute": ("class A:\n    s = 1.0\n    t = [0]\n", "x * A.s", "A.s = 2.0", "A.t = [1]"),
    "static method": ("class A:\n    @staticmethod\n    def h(v): return v * 1\n", "A.h(x)", "A.h = staticmethod(lambda v: v * 2)", "pass"),
    "class method": (
        "B = 1.0\nclass A:\n    @classmethod\n    def h(cls, v): return v * B\n",
        "A.h(x)",
        "B = 2.0",
        "pass",
    ),
    "class called": ("class A:\n    s = 1.0\n    def h(self, v): return v * self.s\n", "A().h(x)", "A.s = 2.0", "pass"),
    "class method added": ("class A:\n    s = 1.0\n    def h(self, v): return v * self.s\n", "A().h(x)", "A.extra = 1", "pass"),
    "enum": ("import enum\nclass M(enum.Enum):\n    a = 1\n    b = 2\nA = M.a\n", "x if A is M.a else -x", "A = M.b", "pass"),
    "partial": (
        "import functools\ndef h(v, a): return v * a\nA = functools.partial(h, a=1.0)\n",
        "A(x)",
        "A = functools.partial(h, a=2.0)",
        "pass",
    ),
    "builtin shadowed": ("", "abs(x)", "abs = lambda v: -v", "pass"),
    "not defined yet": ("", "x * (LATER if x.dims[0] > 9 else 1)", "LATER = 1.0", "pass"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes(tmp_path, name):
    before, body, change, other = CHANGES[name]
    m = module(tmp_path, before, body)
    first = m.f.fingerprint()
    exec(other, m.names)
    assert m.f.fingerprint() == first
    assert fingerprint(m.f.fn) == first  # what is kept and what is computed anew agree
    exec(change, m.names)
    assert m.f.fingerprint() != first
    assert fingerprint(m.f.fn) == m.f.fingerprint()


def test_closure_values(tmp_path):
    source = """
        def make(a):
            def set(v):
                nonlocal a
                a = v
            @layer
            def f(g, x: Src["F"]):
                return x * a
            return f, set
        f, set = make(1.0)
        h, _ = make(2.0)
        k, _ = make(1.0)
    """
    m = Module(tmp_path, source).run()
    first = m.f.fingerprint()
    assert m.k.fingerprint() == first != m.h.fingerprint()
    m.set(2.0)
    assert m.f.fingerprint() == m.h.fingerprint()


def test_imports_inside_of_the_layer(tmp_path, monkeypatch):
    constants = types.ModuleType("some_constants")
    constants.A = 1.0
    monkeypatch.setitem(sys.modules, "some_constants", constants)
    for line, use in (("import some_constants as c", "c.A"), ("from some_constants import A as a", "a"), ("import math", "math.pi")):
        m = Module(tmp_path, f'@layer\ndef f(g, x: Src["F"]):\n    {line}\n    return x * {use}\n').run()
        constants.A = 1.0
        first = m.f.fingerprint()
        constants.A = 2.0
        assert (m.f.fingerprint() != first) == ("some" in line), line


# before the layer, its body, what is read, what it is
REFUSED = {
    "tensor": ("import torch\nW = torch.ones(3)\n", "x * W", "W", "a Tensor"),
    "list": ("A = [1.0]\n", "x * A[0]", "A", "a list"),
    "dict": ("A = {}\n", "x * len(A)", "A", "a dict"),
    "object": ("class C: pass\nA = C()\n", "x * A", "A", "a C"),
    "attribute of an object": ("class C: pass\nA = C()\nA.b = 1.0\n", "x * A.b", "A", "a C"),
    "array": ("import numpy as np\nA = np.ones(2)\n", "x * A", "A", "a ndarray"),
    "in a tuple": ("A = (1.0, [2])\n", "x * A[0]", "A", "a list"),
    "in a module": ("import types\nm = types.ModuleType('m')\nm.A = [1]\n", "x * m.A[0]", "m.A", "a list"),
    "method of an object": ("A = [].append\n", "x * A", "A", "a builtin_function_or_method"),
    "bound method": ("class C:\n    def h(self, v): return v\nA = C().h\n", "A(x)", "A", "a method"),
    "module of torch": ("import torch\nA = torch.nn.Linear(2, 2)\n", "A(x)", "A", "a Linear"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path, name):
    before, body, variable, what = REFUSED[name]
    m = module(tmp_path, before, body)
    line = before.count("\n") + 5
    at = body.index(variable)
    want = (
        f"GN501: f reads {variable}, {what}, from outside\n"
        f"  layer.py:{line}\n"
        f"    return {body}\n"
        f"    {' ' * (7 + at)}{'^' * len(variable.split('.')[0])}\n"
        "  hint: pass it as an argument; only numbers, strings, None, tuples of them, functions and modules are part of a layer's identity"
    )
    assert m.error(lambda m: m.f.fingerprint(), TypeError) == want
    assert m.error(lambda m: m.f.trace_types([X], {}, F32), TypeError) == want


def test_refused_in_a_helper_names_the_helper(tmp_path):
    m = module(tmp_path, "A = [1]\ndef h(v):\n    return v * A[0]\n", "h(x)")
    got = m.error(lambda m: m.f.fingerprint(), TypeError).split("\n")
    assert got[:4] == ["GN501: h reads A, a list, from outside", "  layer.py:5", "    return v * A[0]", "               ^"]


def test_the_vocabulary_and_libraries_have_an_identity(tmp_path):
    before = "import math, numpy as np, torch, gnnc.lang, functools\nfrom math import sqrt as root\n"
    body = "leaky_relu(x, math.pi).to(torch.float32) * np.pi * root(2) * gnnc.lang.exp(1) + functools.reduce(lambda a, b: a + b, [x])"
    m = module(tmp_path, before, body)
    assert len(m.f.fingerprint()) == 64


def test_where_it_stands_does_not_matter_what_it_says_does(tmp_path):
    one, moved = module(tmp_path, "A = 1\n", "x * A"), module(tmp_path, "\n\n\n# moved\nA = 1\n", "x * A")
    other = module(tmp_path, "A = 1\n", "x + A")
    assert one.f.fingerprint() == moved.f.fingerprint() != other.f.fingerprint()


def test_constants_of_the_code_count(tmp_path):
    bodies = [
        "x * 1",
        "x * 1.0",
        "x * True",
        "x * 0.0",
        "x * -0.0",
        "x * len((1, 2))",
        "x * len((2, 1))",
        "x if 1 in {1, 2} else x",
        "x if 1 in {1, 3} else x",
    ]
    assert len({module(tmp_path, "", b).f.fingerprint() for b in bodies}) == len(bodies)


def test_another_layer_is_part_of_it(tmp_path):
    source = """
        import gnnc
        A = 1.0
        @gnnc.layer
        def inner(g, x: Src["F"]):
            return g.sum(g.src(x)) * A
        @layer
        def f(g, x: Src["F"]):
            return inner(g, x) * 2.0
    """
    m = Module(tmp_path, source).run()
    first = m.f.fingerprint()
    assert [v.op for v in m.f.trace_types([X], {}, F32).body] == ["gather", "fold", "const", "mul", "const", "mul"]
    m.names["A"] = 2.0
    assert m.f.fingerprint() != first


def test_a_monoid_is_its_class(tmp_path):
    source = """
        import gnnc
        K = 1.0
        from gnnc.frontend.monoid import monoid
        @monoid
        class Scaled:
            def init(): return 0.0
            def step(state, m): return state + K * m
            def combine(a, b): return a + b
            def finish(state, degree): return state
        @layer
        def f(g, x: Src["F"]):
            return g.fold(Scaled, g.src(x))
    """
    m = Module(tmp_path, source).run()
    first = m.f.fingerprint()
    assert [d.name for d in m.f.trace_types([X], {}, F32).monoids] == ["Scaled"]
    m.names["K"] = 2.0
    assert m.f.fingerprint() != first


def test_equal_in_every_process(tmp_path):
    m = module(tmp_path, "A = ('a', 1.5)\ndef h(v): return v * A[1] if 'b' in {'b', 'c', 'd'} else v\n", "h(x)")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport {m.path.stem} as m\nprint(m.f.fingerprint())"
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([root, os.path.join(root, "runtime")])}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True, timeout=120)
        assert done.stdout.strip() == m.f.fingerprint()


def test_reads_are_found_once_for_a_code_object(tmp_path):
    m = module(tmp_path, "import math\nA = 1\n", "x * A * math.pi * (lambda: A)()")
    reads = reads_of(m.f.fn.__code__)
    assert [(r.kind, r.name, r.attrs) for r in reads] == [("global", "A", ()), ("global", "math", ("pi",))]
    assert reads_of(m.f.fn.__code__) is reads


def test_asking_again_is_cheap(tmp_path):
    before = "import math\nA = 1.0\nB = 2.0\ndef h(v): return leaky_relu(v, A)\ndef k(v): return h(v) * B\n"
    m = module(tmp_path, before, "k(x) + exp(x) * math.pi + sigmoid(h(x))")
    identity = Identity(m.f.fn)
    identity.digest()
    best = min(_timed(identity) for _ in range(20))
    assert best < 200e-6  # about 3 us on an idle core; hashing it all anew is above 200 us


def _timed(identity):
    start = time.perf_counter()
    for _ in range(10):
        identity.digest()
    return (time.perf_counter() - start) / 10
