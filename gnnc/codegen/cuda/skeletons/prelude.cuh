// prelude.cuh: names, bits and the scalar operation table. Everything else is built from these.
//
// Types carry the IR's names. `Reg<T>` is the type that a stored T is computed in: halves are computed in f32.
#define SWEEP_FN __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#ifndef SWEEP_SHARED
#define SWEEP_SHARED(NAME) extern __shared__ uint4 sweep_shared_[]; unsigned* NAME = (unsigned*)sweep_shared_
#endif

namespace sweep {

using f32 = float;
using f64 = double;
using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u32 = unsigned;
using u64 = unsigned long long;

template <bool kCond, class A, class B> struct Choose { using type = A; };
template <class A, class B> struct Choose<false, A, B> { using type = B; };
template <bool> struct EnableIf {};
template <> struct EnableIf<true> { using type = int; };
template <class A, class B> struct IsSame { static constexpr bool value = false; };
template <class A> struct IsSame<A, A> { static constexpr bool value = true; };
template <class T> constexpr bool kIsFloat = IsSame<T, f32>::value || IsSame<T, f64>::value;
template <class T> constexpr bool kIsNumber = kIsFloat<T> || IsSame<T, i8>::value || IsSame<T, u8>::value || IsSame<T, i16>::value ||
                                              IsSame<T, i32>::value || IsSame<T, i64>::value || IsSame<T, bool>::value;

__host__ __device__ constexpr int pow2_ceil(int n) { int p = 1; while (p < n) p *= 2; return p; }
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }

template <class T> struct Tag {};

// ---- A T as bits. Halves add their own (half.cuh); `reg_of` and `bits_of` are found by the tag.
template <class T> struct RegOf { using type = T; };
template <class T> using Reg = typename RegOf<T>::type;
template <class T> struct RegName { using type = T; };                  // what `decltype` of a register by reference is
template <class T> struct RegName<T&> { using type = T; };

SWEEP_FN f32 reg_of(Tag<f32>, u32 w) { return __uint_as_float(w); }
SWEEP_FN i32 reg_of(Tag<i32>, u32 w) { return (i32)w; }
SWEEP_FN i16 reg_of(Tag<i16>, u32 w) { return (i16)(unsigned short)w; }
SWEEP_FN i8 reg_of(Tag<i8>, u32 w) { return (i8)(unsigned char)w; }
SWEEP_FN u8 reg_of(Tag<u8>, u32 w) { return (u8)w; }
SWEEP_FN bool reg_of(Tag<bool>, u32 w) { return (w & 0xff) != 0; }
SWEEP_FN f64 reg_of(Tag<f64>, u32 lo, u32 hi) { return __longlong_as_double((i64)((u64)hi << 32 | lo)); }
SWEEP_FN i64 reg_of(Tag<i64>, u32 lo, u32 hi) { return (i64)((u64)hi << 32 | lo); }
SWEEP_FN u32 bits_of(Tag<f32>, f32 x) { return __float_as_uint(x); }
SWEEP_FN u32 bits_of(Tag<i32>, i32 x) { return (u32)x; }
SWEEP_FN u32 bits_of(Tag<i16>, i16 x) { return (unsigned short)x; }
SWEEP_FN u32 bits_of(Tag<i8>, i8 x) { return (unsigned char)x; }
SWEEP_FN u32 bits_of(Tag<u8>, u8 x) { return x; }
SWEEP_FN u32 bits_of(Tag<bool>, bool x) { return x; }
SWEEP_FN u64 bits_of(Tag<f64>, f64 x) { return (u64)__double_as_longlong(x); }
SWEEP_FN u64 bits_of(Tag<i64>, i64 x) { return (u64)x; }

// One element in memory, read and written as a register: rounded once when stored.
template <class T> SWEEP_FN Reg<T> get(const T* p, i64 i) { return p[i]; }
template <class T> SWEEP_FN void put(T* p, i64 i, Reg<T> x) { p[i] = x; }

// ---- constants
template <class T> SWEEP_FN T inf();
template <> SWEEP_FN f32 inf<f32>() { return __uint_as_float(0x7f800000u); }
template <> SWEEP_FN f64 inf<f64>() { return __longlong_as_double(0x7ff0000000000000ll); }
template <class T> SWEEP_FN T nan();
template <> SWEEP_FN f32 nan<f32>() { return __uint_as_float(0x7fc00000u); }
template <> SWEEP_FN f64 nan<f64>() { return __longlong_as_double(0x7ff8000000000000ll); }

// The least value of a type, where a maximum starts.
template <class T> SWEEP_FN T lowest() {
  if constexpr (kIsFloat<T>) return -inf<T>();
  else return T(-1) < T(0) ? (T)((u64)1 << (8 * sizeof(T) - 1)) : T(0);
}

// ---- conversions. Float to integer truncates and saturates, NaN gives 0.
template <class To, class From> SWEEP_FN To convert(From x) {
  if constexpr (IsSame<To, From>::value) return x;
  else if constexpr (IsSame<To, bool>::value) return x != From(0);
  else if constexpr (kIsFloat<From> && !kIsFloat<To>) {
    constexpr int kBits = 8 * (int)sizeof(To);
    constexpr bool kSigned = To(-1) < To(0);
    constexpr f64 kHigh = kSigned ? (f64)((u64)1 << (kBits - 1)) : 2.0 * (f64)((u64)1 << (kBits - 1));
    constexpr To kMax = (To)(kSigned ? ((u64)1 << (kBits - 1)) - 1 : ~(u64)0);
    constexpr To kMin = kSigned ? (To)((u64)1 << (kBits - 1)) : (To)0;
    if (x != x) return To(0);
    if (x >= (From)kHigh) return kMax;
    if (x <= (kSigned ? (From)-kHigh : (From)0)) return kMin;
    return (To)x;
  } else return (To)x;
}

// ---- the op table, on scalars. T is the dtype of the arithmetic; small integers wrap.
#define SWEEP_SCALAR template <class T, typename EnableIf<kIsNumber<T>>::type = 0> SWEEP_FN
SWEEP_SCALAR T add(T x, T y) { return (T)(x + y); }
SWEEP_SCALAR T sub(T x, T y) { return (T)(x - y); }
SWEEP_SCALAR T mul(T x, T y) { return (T)(x * y); }
SWEEP_SCALAR T div(T x, T y) { return x / y; }
SWEEP_FN f32 fma(f32 x, f32 y, f32 z) { return __fmaf_rn(x, y, z); }
SWEEP_FN f64 fma(f64 x, f64 y, f64 z) { return __fma_rn(x, y, z); }
SWEEP_SCALAR T neg(T x) { return (T)(-x); }
SWEEP_SCALAR T abs(T x) {
  if constexpr (IsSame<T, f32>::value) return fabsf(x);
  else if constexpr (IsSame<T, f64>::value) return fabs(x);
  else return x < T(0) ? (T)(-x) : x;
}
SWEEP_SCALAR T sign(T x) { return x > T(0) ? T(1) : x < T(0) ? (T)(-1) : x; }          // NaN stays NaN
SWEEP_SCALAR bool eq(T x, T y) { return x == y; }
SWEEP_SCALAR bool ne(T x, T y) { return x != y; }
SWEEP_SCALAR bool lt(T x, T y) { return x < y; }
SWEEP_SCALAR bool le(T x, T y) { return x <= y; }
SWEEP_SCALAR bool gt(T x, T y) { return x > y; }
SWEEP_SCALAR bool ge(T x, T y) { return x >= y; }
SWEEP_FN bool both(bool x, bool y) { return x & y; }
SWEEP_FN bool either(bool x, bool y) { return x | y; }
SWEEP_FN bool negate(bool x) { return !x; }
SWEEP_SCALAR T where(bool c, T x, T y) { return c ? x : y; }
// The larger and the smaller; a NaN wins.
SWEEP_SCALAR T maximum(T x, T y) {
#ifdef __CUDA_ARCH__
  if constexpr (IsSame<T, f32>::value) { f32 z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
  else
#endif
  return (x > y || x != x) ? x : y;
}
SWEEP_SCALAR T minimum(T x, T y) {
#ifdef __CUDA_ARCH__
  if constexpr (IsSame<T, f32>::value) { f32 z; asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
  else
#endif
  return (x < y || x != x) ? x : y;
}
// CUDA's precise functions: at most 2 ulp in f32 and f64 each (pow 4 in f32, erf 2), no fast-math anywhere.
SWEEP_FN f32 exp(f32 x) { return ::expf(x); }
SWEEP_FN f64 exp(f64 x) { return ::exp(x); }
SWEEP_FN f32 expm1(f32 x) { return ::expm1f(x); }
SWEEP_FN f64 expm1(f64 x) { return ::expm1(x); }
SWEEP_FN f32 log(f32 x) { return ::logf(x); }
SWEEP_FN f64 log(f64 x) { return ::log(x); }
SWEEP_FN f32 sqrt(f32 x) { return ::sqrtf(x); }
SWEEP_FN f64 sqrt(f64 x) { return ::sqrt(x); }
SWEEP_SCALAR T rsqrt(T x) { return T(1) / sweep::sqrt(x); }
SWEEP_FN f32 tanh(f32 x) { return ::tanhf(x); }
SWEEP_FN f64 tanh(f64 x) { return ::tanh(x); }
SWEEP_FN f32 erf(f32 x) { return ::erff(x); }
SWEEP_FN f64 erf(f64 x) { return ::erf(x); }
SWEEP_FN f32 pow(f32 x, f32 y) { return ::powf(x, y); }
SWEEP_FN f64 pow(f64 x, f64 y) { return ::pow(x, y); }
SWEEP_SCALAR T square(T x) { return x * x; }
SWEEP_SCALAR T sigmoid(T x) {                                                            // never exp of a large positive number
  const T e = sweep::exp(-sweep::abs(x));
  return (x >= T(0) ? T(1) : e) / (T(1) + e);
}
SWEEP_SCALAR T relu(T x) { return x > T(0) || x != x ? x : T(0); }
SWEEP_SCALAR T leaky_relu(T x, T slope) { return x > T(0) ? x : x * slope; }
SWEEP_SCALAR T elu(T x, T alpha) { return x > T(0) ? x : alpha * sweep::expm1(x); }
SWEEP_SCALAR T gelu(T x) { return T(0.5) * x * (T(1) + sweep::erf(x * T(0.70710678118654752))); }
SWEEP_SCALAR T silu(T x) { return x * sweep::sigmoid(x); }

}  // namespace sweep
