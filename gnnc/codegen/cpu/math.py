"""exp, log, tanh, sigmoid, erf, pow and expm1 as inline polynomials over any number of lanes, f32 and f64.

Each is an internal ``alwaysinline`` function of the module, made once a width: ``@gnnc.exp.v16f32``. Results are within 2 ulp
over the whole range, denormals included (sigmoid 2.1 on targets without FMA; f64 erf and pow call the C library lane by lane).
NaN stays NaN.

Sources: Cephes (f32 exp, tanh; S. Moshier), FreeBSD msun / musl (f64 exp, log), N. Juffa (erff). f32 pow goes through f64.
"""

from __future__ import annotations

from collections.abc import Callable
from math import e as euler
from math import log2

from .emit_text import FunctionText, ModuleText, suffix, vector_type
from .lanes import Lanes, Reg

Body = Callable[[Lanes, "list[Reg]"], Reg]


def call(k: Lanes, name: str, *args: Reg) -> Reg:
    """``name(args)``: exp, log, tanh, sigmoid, erf, expm1 (arguments <= 0 only) or pow."""
    scalar = args[0].scalar
    full = f"gnnc.{name}.{suffix(k.width, scalar)}"
    if full not in k.fn.module.helpers:
        k.fn.module.helpers[full] = ""  # bodies may ask for others
        k.fn.module.helpers[full] = _define(k.fn.module, full, k.width, scalar, len(args), _BODIES[name])
    return k.call(full, scalar, *args)


def _define(module: ModuleText, full: str, width: int, scalar: str, arity: int, body: Body) -> str:
    t = vector_type(width, scalar)
    names = ["x", "y"][:arity]
    fn = FunctionText(module, f"define internal {t} @{full}({', '.join(f'{t} %{n}' for n in names)}) alwaysinline nounwind")
    for n in names:
        fn.fresh(n)
    out = body(Lanes(fn, width), [Reg(f"%{n}", scalar) for n in names])
    fn.emit(f"ret {t} {out.text}")
    return fn.finish()


def _int_of(scalar: str) -> str:
    return "i32" if scalar == "float" else "i64"


def scale_by_power(k: Lanes, x: Reg, n: Reg) -> Reg:
    """x * 2^n for integer ``n``; the target decides how (`target_helpers.py`)."""
    full = f"gnnc.scale.{suffix(k.width, x.scalar)}"
    t = k.vt(x.scalar)
    k.fn.module.declare(f"{t} @{full}({t}, {k.vt(n.scalar)})")
    return k.call(full, x.scalar, x, n)


def _reduce(k: Lanes, x: Reg) -> tuple[Reg, Reg]:
    """x = n ln 2 + r with |r| <= ln 2 / 2; (n as an integer, r). Adding 1.5 * 2^mantissa rounds and leaves n in the low bits."""
    f32 = x.scalar == "float"
    magic = k.like(x, 12582912.0 if f32 else 6755399441055744.0)
    hi, lo = (0.693359375, -2.12194440e-4) if f32 else (6.93145751953125e-1, 1.42860682030941723212e-6)
    shifted = k.madd(x, k.like(x, log2(euler)), magic)
    rounded = k.sub(shifted, magic)
    i = _int_of(x.scalar)
    bits = k.convert("bitcast", shifted, i)
    n = k.sub(bits, k.const(0x4B400000 if f32 else 0x4338000000000000, i))
    r = k.sub(x, k.mul(rounded, k.like(x, hi)))
    return n, k.sub(r, k.mul(rounded, k.like(x, lo)))


def _expm1_reduced(k: Lanes, r: Reg) -> Reg:
    """e^r - 1 for |r| <= ln 2 / 2."""
    r2 = k.mul(r, r)
    if r.scalar == "float":
        p = k.poly(r, [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1])
        return k.madd(p, r2, r)
    terms = [4.13813679705723846039e-08, -1.65339022054652515390e-06, 6.61375632143793436117e-05, -2.77777777770155933842e-03]
    c = k.sub(r, k.mul(r2, k.poly(r2, [*terms, 1.66666666666666019037e-01])))
    return k.add(r, k.div(k.mul(r, c), k.sub(k.like(r, 2.0), c)))


def _clamp(k: Lanes, x: Reg, lo: float, hi: float) -> Reg:
    """x held in [lo, hi]; NaN stays."""
    if lo > float("-inf"):
        x = k.select(k.compare("olt", x, k.like(x, lo)), k.like(x, lo), x)
    return k.select(k.compare("ogt", x, k.like(x, hi)), k.like(x, hi), x)


def _exp(k: Lanes, args: list[Reg]) -> Reg:
    x = args[0]
    x = _clamp(k, x, -105.0, 89.0) if x.scalar == "float" else _clamp(k, x, -746.0, 710.0)
    n, r = _reduce(k, x)
    return scale_by_power(k, k.add(_expm1_reduced(k, r), k.like(x, 1.0)), n)


def _expm1(k: Lanes, args: list[Reg]) -> Reg:
    x = _clamp(k, args[0], -40.0, 0.0)
    n, r = _reduce(k, x)
    one = k.like(x, 1.0)
    s = scale_by_power(k, one, n)
    return k.select(k.compare("oeq", x, k.like(x, 0.0)), x, k.add(k.mul(_expm1_reduced(k, r), s), k.sub(s, one)))


def _log(k: Lanes, args: list[Reg]) -> Reg:
    x0 = x = args[0]
    f32 = x.scalar == "float"
    i = _int_of(x.scalar)
    tiny = k.compare("olt", x, k.like(x, 2.0**-126 if f32 else 2.0**-1022))
    lift = 25 if f32 else 54
    x = k.select(tiny, k.mul(x, k.like(x, 2.0**lift)), x)
    one, base, mantissa = (0x3F800000, 0x3F3504F3, 23) if f32 else (0x3FF0000000000000, 0x3FE6A09E00000000, 52)
    ix = k.add(k.convert("bitcast", x, i), k.const(one - base, i))
    n = k.sub(k.bits("ashr", ix, k.const(mantissa, i)), k.const(127 if f32 else 1023, i))
    n = k.sub(n, k.select(tiny, k.const(lift, i), k.const(0, i)))
    ix = k.add(k.bits("and", ix, k.const((1 << mantissa) - 1, i)), k.const(base, i))
    f = k.sub(k.convert("bitcast", ix, x.scalar), k.like(x, 1.0))
    s = k.div(f, k.add(f, k.like(f, 2.0)))
    z = k.mul(s, s)
    w = k.mul(z, z)
    if f32:
        even, odd, hi, lo = [0.24279078841, 0.40000972152], [0.28498786688, 0.66666662693], 6.9313812256e-01, 9.0580006145e-06
    else:
        even = [1.531383769920937332e-01, 2.222219843214978396e-01, 3.999999999940941908e-01]
        odd = [1.479819860511658591e-01, 1.818357216161805012e-01, 2.857142874366239149e-01, 6.666666666666735130e-01]
        hi, lo = 6.93147180369123816490e-01, 1.90821492927058770002e-10
    r = k.add(k.mul(z, k.poly(w, odd)), k.mul(w, k.poly(w, even)))
    half = k.mul(k.mul(k.like(f, 0.5), f), f)
    dn = k.convert("sitofp", n, x.scalar)
    out = k.add(k.mul(s, k.add(half, r)), k.mul(dn, k.like(f, lo)))
    out = k.add(k.add(k.sub(out, half), f), k.mul(dn, k.like(f, hi)))
    inf, zero = k.like(x, float("inf")), k.like(x, 0.0)
    out = k.select(k.compare("oeq", x0, zero), k.like(x, float("-inf")), out)
    out = k.select(k.compare("olt", x0, zero), k.like(x, float("nan")), out)
    return k.select(k.compare("ult", x0, inf), k.select(k.compare("uno", x0, x0), x0, out), x0)


def _tanh(k: Lanes, args: list[Reg]) -> Reg:
    x = args[0]
    size = k.fabs(x)
    z = k.mul(x, x)
    if x.scalar == "float":
        p = k.poly(z, [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1])
    else:
        top = k.poly(z, [-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3])
        p = k.div(top, k.poly(z, [1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3]))
    small = k.madd(k.mul(p, z), x, x)
    grown = call(k, "exp", k.add(size, size))
    big = k.sub(k.like(x, 1.0), k.div(k.like(x, 2.0), k.add(grown, k.like(x, 1.0))))
    return k.select(k.compare("olt", size, k.like(x, 0.625)), small, k.intrinsic("copysign", big, x))


def _sigmoid(k: Lanes, args: list[Reg]) -> Reg:
    # e^-|x| stays in two parts, s + s * tail, where it is the numerator: rounded it would cost half an ulp too much.
    x = args[0]
    n, r = _reduce(k, _clamp(k, k.neg(k.fabs(x)), -105.0 if x.scalar == "float" else -746.0, 0.0))
    one, tail = k.like(x, 1.0), _expm1_reduced(k, r)
    s = scale_by_power(k, one, n)
    q = k.div(one, k.add(one, k.madd(s, tail, s)))
    qs = k.mul(q, s)
    return k.select(k.compare("oge", x, k.like(x, 0.0)), q, k.madd(qs, tail, qs))


def _erf(k: Lanes, args: list[Reg]) -> Reg:
    x = args[0]
    if x.scalar == "double":
        return k.each_lane("erf", x)
    t = k.fabs(x)
    t = k.select(k.compare("ogt", t, k.like(t, 5.0)), k.like(t, 5.0), t)
    s = k.mul(t, t)
    r = k.madd(k.like(t, -1.72853470e-5), t, k.like(t, 3.83197126e-4))
    u = k.madd(k.like(t, -3.88396438e-3), t, k.like(t, 2.42546219e-2))
    r = k.madd(r, s, u)
    for c in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = k.madd(r, t, k.like(t, c))
    r = k.sub(k.mul(r, t), t)
    big = k.intrinsic("copysign", k.sub(k.like(x, 1.0), call(k, "exp", r)), x)
    near = [-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1]
    small = k.madd(k.poly(s, near), x, x)
    return k.select(k.compare("ogt", t, k.like(t, 0.927734375)), big, small)


def _pow(k: Lanes, args: list[Reg]) -> Reg:
    x, y = args
    if x.scalar == "double":
        return k.each_lane("pow", x, y)
    wide, power = k.convert("fpext", x, "double"), k.convert("fpext", y, "double")
    size = call(k, "exp", k.mul(power, call(k, "log", k.fabs(wide))))
    out = k.convert("fptrunc", size, "float")
    zero, one, inf = k.like(x, 0.0), k.like(x, 1.0), k.like(x, float("inf"))
    half = k.mul(y, k.like(y, 0.5))
    whole = k.compare("oeq", k.intrinsic("floor", y), y)
    odd = k.bits("and", whole, k.compare("une", k.intrinsic("floor", half), half))
    signed = k.select(odd, k.intrinsic("copysign", out, x), out)
    finite_negative = k.bits("and", k.compare("olt", x, zero), k.compare("ogt", x, k.like(x, float("-inf"))))
    bad = k.bits("and", finite_negative, k.compare("une", k.intrinsic("floor", y), y))
    out = k.select(bad, k.like(x, float("nan")), signed)
    unit = k.bits("and", k.compare("oeq", k.fabs(x), one), k.compare("oeq", k.fabs(y), inf))
    trivial = k.bits("or", k.bits("or", k.compare("oeq", x, one), k.compare("oeq", y, zero)), unit)
    return k.select(trivial, one, out)


_BODIES: dict[str, Body] = {
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "pow": _pow,
}
