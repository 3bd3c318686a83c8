// fragment.cuh: values of shape [H, C], [H], [C] or scalar, spread over a group of lanes.
//
//   Layout, Lane   which lane holds which element                        (section 1)
//   Frag           a value in registers, with broadcasting arithmetic    (section 2)
//   reductions     over C and over H, by shuffles in a fixed order       (section 3)
//   Raw            a value as loaded, still in its storage dtype         (section 4)
namespace sweep {

// ---------------------------------------------------------------------------------------------------------------
// 1. Layout: H heads of C channels on a group of kLanes lanes, in vectors of kVec elements.
//
// A head is covered by kHeadLanes neighbouring lanes (a power of two, so that xor-shuffles stay inside the head). If it
// needs fewer lanes than the group has, kHeadsAbreast heads lie side by side; a lane then meets kHeads heads one after
// another. Element [i][v * kVec + k] of lane t is
//     head    = i * kHeadsAbreast + t / kHeadLanes
//     channel = (v * kHeadLanes + t % kHeadLanes) * kVec + k
// so for each (i, v) the lanes of a group read one contiguous run. kVec divides C: a vector never straddles two heads and is
// aligned; a tail is a matter of whole vectors and heads (head_ok, chan_ok), free when sizes are exact.
//
// A warp holds kGroups = 32 / kLanes groups. They take different edges of one row, or one row each (a Program's kGroupRows).
// kSlices > 1: the tables have kSlices * H heads and each pass over the edges handles H of them.
template <int kH, int kC, int kVec_, int kLanes_, int kSlices_ = 1>
struct Layout {
  static constexpr int H = kH, C = kC, kVec = kVec_, kLanes = kLanes_, kSlices = kSlices_;
  static constexpr int kGroups = 32 / kLanes;
  static constexpr int kHeadVecs = ceil_div(C, kVec);
  static constexpr int kHeadLanes = pow2_ceil(kHeadVecs) < kLanes ? pow2_ceil(kHeadVecs) : kLanes;
  static constexpr int kHeadsAbreast = kLanes / kHeadLanes;
  static constexpr int kVecs = ceil_div(kHeadVecs, kHeadLanes);        // vectors of a head in one lane
  static constexpr int kHeads = ceil_div(H, kHeadsAbreast);            // heads in one lane
  static constexpr int kElems = kVecs * kVec;                          // elements of a head in one lane
  static constexpr bool kExactHeads = kHeads * kHeadsAbreast == H;
  static constexpr bool kExactChans = kVecs * kHeadLanes == kHeadVecs;
  static_assert(C % kVec == 0 && 32 % kLanes == 0, "vectors must tile a head, groups must tile a warp");

  // Distance between consecutive rows of a table of each shape.
  template <bool H_, bool C_> __host__ __device__ static constexpr int row_stride() { return (H_ ? kSlices * H : 1) * (C_ ? C : 1); }
};

// Where this thread stands in the layout.
template <class L> struct Lane {
  int t, group;      // lane within its group, group within the warp
  int slice;
  int head, chan;    // first head (in the whole table) and first channel held here
  int local_head;    // first head, counted within the slice
  bool lead;         // this group stores what belongs to the row
  SWEEP_FN explicit Lane(int slice_) : slice(slice_) {
    const int lane = threadIdx.x & 31;
    t = lane % L::kLanes;
    group = lane / L::kLanes;
    local_head = t / L::kHeadLanes;
    head = slice * L::H + local_head;
    chan = (t % L::kHeadLanes) * L::kVec;
    lead = group == 0;
  }
  SWEEP_FN bool head_ok(int i) const { return L::kExactHeads || local_head + i * L::kHeadsAbreast < L::H; }
  SWEEP_FN bool chan_ok(int v) const { return L::kExactChans || chan + v * L::kHeadLanes * L::kVec < L::C; }
  // Offset, within a row whose heads lie head_stride apart, of vector v of the i-th head held here: a run-time part and a
  // compile-time part.
  template <bool H_, bool C_> SWEEP_FN int base(int head_stride) const { return (H_ ? head * head_stride : 0) + (C_ ? chan : 0); }
  template <bool H_, bool C_> __host__ __device__ static constexpr int step(int i, int v, int head_stride) {
    return (H_ ? i * L::kHeadsAbreast * head_stride : 0) + (C_ ? v * L::kHeadLanes * L::kVec : 0);
  }
  // Of the lanes of a group that hold the same copy of a value of this shape, the one that writes it.
  template <bool H_, bool C_> SWEEP_FN bool owns() const {
    return (C_ || t % L::kHeadLanes == 0) && (H_ || (t / L::kHeadLanes == 0 && slice == 0));
  }
};

// ---------------------------------------------------------------------------------------------------------------
// 2. Frag: a value in registers of element type E. kH, kC say which of the two feature dims it has; a dim it lacks costs
//    nothing and broadcasts for free, because every lane that needs the value already holds it.
template <class L_, class E_, bool kH_, bool kC_> struct Frag {
  using L = L_;
  using E = E_;
  static constexpr bool kH = kH_, kC = kC_;
  static constexpr int NH = kH ? L::kHeads : 1, NC = kC ? L::kElems : 1;
  static constexpr int kWords = NH * NC * (sizeof(E) == 8 ? 2 : 1);    // 4-byte words of an image, per lane
  E v[NH][NC];
  SWEEP_FN E at(int h, int c) const { return v[kH ? h : 0][kC ? c : 0]; }
  template <class F> SWEEP_FN void each(F f) {
    UNROLL for (int h = 0; h < NH; h++) UNROLL for (int c = 0; c < NC; c++) f(v[h][c]);
  }
};
template <class L, class E> using Wide = Frag<L, E, true, true>;     // [H, C]
template <class L, class E> using Head = Frag<L, E, true, false>;    // [H]
template <class L, class E> using Chan = Frag<L, E, false, true>;    // [C]
template <class L, class E> using Unit = Frag<L, E, false, false>;   // scalar

template <class A> struct Shape { static constexpr bool frag = false, h = false, c = false; };
template <class L_, class E, bool kH, bool kC> struct Shape<Frag<L_, E, kH, kC>> { static constexpr bool frag = true, h = kH, c = kC; };
template <class... A> struct FirstLayout;
template <class A, class... R> struct FirstLayout<A, R...> { using L = typename FirstLayout<R...>::L; };
template <class L_, class E, bool kH, bool kC, class... R> struct FirstLayout<Frag<L_, E, kH, kC>, R...> { using L = L_; };

template <class L, class E, bool kH, bool kC> SWEEP_FN E at(const Frag<L, E, kH, kC>& x, int h, int c) { return x.at(h, c); }
template <class T, typename EnableIf<kIsNumber<T>>::type = 0> SWEEP_FN T at(T x, int, int) { return x; }

// Elementwise, with broadcasting: the result has a dim if an argument has it.
template <class F, class... A> SWEEP_FN auto map(F f, const A&... a) {
  Frag<typename FirstLayout<A...>::L, decltype(f(at(a, 0, 0)...)), (Shape<A>::h || ...), (Shape<A>::c || ...)> r;
  UNROLL for (int h = 0; h < r.NH; h++) UNROLL for (int c = 0; c < r.NC; c++) r.v[h][c] = f(at(a, h, c)...);
  return r;
}
template <class L, class T> SWEEP_FN Unit<L, T> unit(T x) { Unit<L, T> r; r.v[0][0] = x; return r; }
template <class L, class E, bool kH, bool kC> SWEEP_FN void fill(Frag<L, E, kH, kC>& x, E value) { x.each([value](E& r) { r = value; }); }
// to = x, spread over the dims that x lacks.
template <class L, class E, bool kH, bool kC, class X> SWEEP_FN void set(Frag<L, E, kH, kC>& to, const X& x) {
  UNROLL for (int h = 0; h < to.NH; h++) UNROLL for (int c = 0; c < to.NC; c++) to.v[h][c] = at(x, h, c);
}
template <class To, class L, class E, bool kH, bool kC> SWEEP_FN Frag<L, To, kH, kC> convert(const Frag<L, E, kH, kC>& x) {
  return map([](E a) { return convert<To>(a); }, x);
}

// Every scalar operation works on Frags too.
#define SWEEP_MAP1(NAME)                                                                                                  \
  template <class A, typename EnableIf<Shape<A>::frag>::type = 0>                                                        \
  SWEEP_FN auto NAME(const A& a) { return map([](auto x) { return sweep::NAME(x); }, a); }
#define SWEEP_MAP2(NAME)                                                                                                  \
  template <class A, class B, typename EnableIf<(Shape<A>::frag || Shape<B>::frag)>::type = 0>                           \
  SWEEP_FN auto NAME(const A& a, const B& b) { return map([](auto x, auto y) { return sweep::NAME(x, y); }, a, b); }
#define SWEEP_MAP3(NAME)                                                                                                  \
  template <class A, class B, class C, typename EnableIf<(Shape<A>::frag || Shape<B>::frag || Shape<C>::frag)>::type = 0> \
  SWEEP_FN auto NAME(const A& a, const B& b, const C& c) {                                                               \
    return map([](auto x, auto y, auto z) { return sweep::NAME(x, y, z); }, a, b, c);                                    \
  }
SWEEP_MAP2(add) SWEEP_MAP2(sub) SWEEP_MAP2(mul) SWEEP_MAP2(div) SWEEP_MAP2(pow) SWEEP_MAP2(maximum) SWEEP_MAP2(minimum)
SWEEP_MAP2(eq) SWEEP_MAP2(ne) SWEEP_MAP2(lt) SWEEP_MAP2(le) SWEEP_MAP2(gt) SWEEP_MAP2(ge) SWEEP_MAP2(both) SWEEP_MAP2(either)
SWEEP_MAP2(leaky_relu) SWEEP_MAP2(elu) SWEEP_MAP3(where) SWEEP_MAP3(fma)
SWEEP_MAP1(neg) SWEEP_MAP1(abs) SWEEP_MAP1(sign) SWEEP_MAP1(exp) SWEEP_MAP1(log) SWEEP_MAP1(sqrt) SWEEP_MAP1(rsqrt) SWEEP_MAP1(tanh)
SWEEP_MAP1(sigmoid) SWEEP_MAP1(erf) SWEEP_MAP1(square) SWEEP_MAP1(relu) SWEEP_MAP1(gelu) SWEEP_MAP1(silu) SWEEP_MAP1(negate)
template <class T, class L, bool kH, bool kC> SWEEP_FN Frag<L, f32, kH, kC> round_to(const Frag<L, f32, kH, kC>& x) {
  return map([](f32 a) { return round_to<T>(a); }, x);
}
#define SWEEP_BINARY(OP, NAME)                                                                                            \
  template <class A, class B, typename EnableIf<(Shape<A>::frag || Shape<B>::frag)>::type = 0>                           \
  SWEEP_FN auto operator OP(const A& a, const B& b) { return NAME(a, b); }
SWEEP_BINARY(+, add) SWEEP_BINARY(-, sub) SWEEP_BINARY(*, mul) SWEEP_BINARY(/, div)

// Positions along H, along C, and in the flattened row.
template <class L> SWEEP_FN Head<L, i32> iota_h(const Lane<L>& lane) {
  Head<L, i32> r;
  UNROLL for (int h = 0; h < r.NH; h++) r.v[h][0] = lane.head + h * L::kHeadsAbreast;
  return r;
}
template <class L> SWEEP_FN Chan<L, i32> iota_c(const Lane<L>& lane) {
  Chan<L, i32> r;
  UNROLL for (int c = 0; c < r.NC; c++) r.v[0][c] = lane.chan + (c / L::kVec) * L::kHeadLanes * L::kVec + c % L::kVec;
  return r;
}
template <class L> SWEEP_FN Wide<L, i32> iota_flat(const Lane<L>& lane) { return iota_h(lane) * L::C + iota_c(lane); }

// ---------------------------------------------------------------------------------------------------------------
// 3. Feature reductions: in the lane first, then xor-shuffles among the lanes that share a head (over C) or that share channels
//    (over H). Tail elements are left out only if the layout has any. All 32 lanes must call these together.
template <class T> SWEEP_FN T shuffle_xor(T x, int o) {
  if constexpr (sizeof(T) >= 4) return __shfl_xor_sync(0xffffffffu, x, o);
  else return (T)__shfl_xor_sync(0xffffffffu, (int)x, o);
}
template <class L, class Add, class Join, class E> SWEEP_FN E over_c(const Lane<L>& lane, E start, Add add_to, Join join) {
  E s = start;
  UNROLL for (int c = 0; c < L::kElems; c++) if (lane.chan_ok(c / L::kVec)) s = add_to(s, c);
  UNROLL for (int o = L::kHeadLanes / 2; o > 0; o /= 2) s = join(s, shuffle_xor(s, o));
  return s;
}
template <class L, class Add, class Join, class E> SWEEP_FN E over_h(const Lane<L>& lane, E start, Add add_to, Join join) {
  E s = start;
  UNROLL for (int i = 0; i < L::kHeads; i++) if (lane.head_ok(i)) s = add_to(s, i);
  UNROLL for (int o = L::kHeadLanes; o < L::kLanes; o *= 2) s = join(s, shuffle_xor(s, o));
  return s;
}
template <class L, class X> SWEEP_FN auto sum_c(const Lane<L>& lane, const X& x) {
  using E = typename X::E;
  Frag<L, E, X::kH, false> r;
  UNROLL for (int h = 0; h < r.NH; h++)
    r.v[h][0] = over_c(lane, E(0), [&](E s, int c) { return add(s, x.at(h, c)); }, [](E a, E b) { return add(a, b); });
  return r;
}
template <class L, class X> SWEEP_FN auto sum_h(const Lane<L>& lane, const X& x) {
  using E = typename X::E;
  Frag<L, E, false, X::kC> r;
  UNROLL for (int c = 0; c < r.NC; c++)
    r.v[0][c] = over_h(lane, E(0), [&](E s, int h) { return add(s, x.at(h, c)); }, [](E a, E b) { return add(a, b); });
  return r;
}
// Sums of products: one fma an element.
template <class L, class X, class Y> SWEEP_FN auto dot_c(const Lane<L>& lane, const X& x, const Y& y) {
  using E = typename X::E;
  Frag<L, E, X::kH || Y::kH, false> r;
  UNROLL for (int h = 0; h < r.NH; h++)
    r.v[h][0] = over_c(lane, E(0), [&](E s, int c) { return fma(x.at(h, c), y.at(h, c), s); }, [](E a, E b) { return add(a, b); });
  return r;
}
template <class L, class X, class Y> SWEEP_FN auto dot_h(const Lane<L>& lane, const X& x, const Y& y) {
  using E = typename X::E;
  Frag<L, E, false, X::kC || Y::kC> r;
  UNROLL for (int c = 0; c < r.NC; c++)
    r.v[0][c] = over_h(lane, E(0), [&](E s, int h) { return fma(x.at(h, c), y.at(h, c), s); }, [](E a, E b) { return add(a, b); });
  return r;
}
template <class L, class X> SWEEP_FN auto max_c(const Lane<L>& lane, const X& x) {
  using E = typename X::E;
  Frag<L, E, X::kH, false> r;
  UNROLL for (int h = 0; h < r.NH; h++)
    r.v[h][0] = over_c(lane, lowest<E>(), [&](E s, int c) { return maximum(s, x.at(h, c)); }, [](E a, E b) { return maximum(a, b); });
  return r;
}
template <class L, class X> SWEEP_FN auto max_h(const Lane<L>& lane, const X& x) {
  using E = typename X::E;
  Frag<L, E, false, X::kC> r;
  UNROLL for (int c = 0; c < r.NC; c++)
    r.v[0][c] = over_h(lane, lowest<E>(), [&](E s, int h) { return maximum(s, x.at(h, c)); }, [](E a, E b) { return maximum(a, b); });
  return r;
}

// ---------------------------------------------------------------------------------------------------------------
// 4. Raw: a value as loaded, still in the storage dtype. Keeping it raw until it is used halves the registers of 16-bit
//    edges in flight; `widen` makes the Frag.

// Whether an edge of the current batch exists. In full batches (kTail = false) it is statically true and costs nothing.
template <bool kTail> struct Live {
  bool on;
  SWEEP_FN operator bool() const { return kTail ? on : true; }
};
using Always = Live<false>;

template <int kBytes> struct Words { u32 w[kBytes < 4 ? 1 : kBytes / 4]; };

// Loads through the read-only path. Absent edges (and absent vectors of a feature tail) are not read and give zeros: as PTX with
// a predicate, so that no branch comes between the loads of a batch.
template <int kBytes> SWEEP_FN void load_plain(const void* p, u32* w) {
  if constexpr (kBytes == 16) { const uint4 x = __ldg((const uint4*)p); w[0] = x.x; w[1] = x.y; w[2] = x.z; w[3] = x.w; }
  else if constexpr (kBytes == 8) { const uint2 x = __ldg((const uint2*)p); w[0] = x.x; w[1] = x.y; }
  else if constexpr (kBytes == 4) w[0] = __ldg((const u32*)p);
  else if constexpr (kBytes == 2) w[0] = __ldg((const unsigned short*)p);
  else w[0] = __ldg((const unsigned char*)p);
}
template <int kBytes> SWEEP_FN void load_if(const void* p, u32* w, bool on) {
#ifdef __CUDA_ARCH__
  if constexpr (kBytes == 16)
    asm("{ .reg .pred q; setp.ne.u32 q, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
        " @q ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(w[0]), "=&r"(w[1]), "=&r"(w[2]), "=&r"(w[3]) : "l"(p), "r"((u32)on));
  else if constexpr (kBytes == 8)
    asm("{ .reg .pred q; setp.ne.u32 q, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; @q ld.global.nc.v2.u32 {%0, %1}, [%2]; }"
        : "=&r"(w[0]), "=&r"(w[1]) : "l"(p), "r"((u32)on));
  else if constexpr (kBytes == 4)
    asm("{ .reg .pred q; setp.ne.u32 q, %2, 0; mov.u32 %0, 0; @q ld.global.nc.u32 %0, [%1]; }"
        : "=&r"(w[0]) : "l"(p), "r"((u32)on));
  else if constexpr (kBytes == 2) {
    unsigned short s;
    asm("{ .reg .pred q; setp.ne.u32 q, %2, 0; mov.u16 %0, 0; @q ld.global.nc.u16 %0, [%1]; }"
        : "=&h"(s) : "l"(p), "r"((u32)on));
    w[0] = s;
  } else
    asm("{ .reg .pred q; setp.ne.u32 q, %2, 0; mov.u32 %0, 0; @q ld.global.nc.u8 %0, [%1]; }"
        : "=&r"(w[0]) : "l"(p), "r"((u32)on));
#else
  if (on) load_plain<kBytes>(p, w);
  else for (int i = 0; i < (kBytes < 4 ? 1 : kBytes / 4); i++) w[i] = 0;
#endif
}
template <int kBytes, bool kMaybe> SWEEP_FN Words<kBytes> load_words(const void* p, bool on) {
  Words<kBytes> r;
  constexpr int kStep = kBytes < 16 ? kBytes : 16;                      // a wide dtype beside a narrow one: several loads a vector
  UNROLL for (int b = 0; b < kBytes; b += kStep) {
    if constexpr (kMaybe) load_if<kStep>((const char*)p + b, r.w + b / 4, on);
    else load_plain<kStep>((const char*)p + b, r.w + b / 4);
  }
  return r;
}
template <class T, int kBytes> SWEEP_FN Reg<T> element(const Words<kBytes>& r, int i) {
  if constexpr (sizeof(T) == 8) return reg_of(Tag<T>{}, r.w[2 * i], r.w[2 * i + 1]);
  else if constexpr (sizeof(T) == 4) return reg_of(Tag<T>{}, r.w[i]);
  else if constexpr (sizeof(T) == 2) return reg_of(Tag<T>{}, i % 2 ? r.w[i / 2] >> 16 : r.w[i / 2] & 0xffffu);
  else return reg_of(Tag<T>{}, r.w[i / 4] >> (8 * (i % 4)) & 0xffu);
}

template <class L, class T, bool kH, bool kC> struct Raw {
  static constexpr int NH = kH ? L::kHeads : 1, NV = kC ? L::kVecs : 1, N = kC ? L::kVec : 1;
  Words<N * (int)sizeof(T)> v[NH][NV];
};
template <class L, class T> using RawWide = Raw<L, T, true, true>;
template <class L, class T> using RawHead = Raw<L, T, true, false>;
template <class L, class T> using RawChan = Raw<L, T, false, true>;
template <class L, class T> using RawUnit = Raw<L, T, false, false>;

// A part of every row of a wider table: the distance of its rows and of its heads, in elements.
template <class T, int kRow_, int kHead_> struct View {
  static constexpr int kRow = kRow_, kHead = kHead_;
  T* p;
};
template <int kRow, int kHead, class T> SWEEP_FN View<T, kRow, kHead> view(T* p) { return {p}; }
// A table of shape [rows] + the shape's feature dims.
template <bool kH, bool kC, class L, class T> using Whole = View<T, L::template row_stride<kH, kC>(), (kC ? L::C : 1)>;

// Loads row `row` of a table or view.
template <bool kH, bool kC, class L, class T, int kRow, int kHead, bool kTail>
SWEEP_FN Raw<L, T, kH, kC> fetch(View<const T, kRow, kHead> table, i64 row, const Lane<L>& lane, Live<kTail> live) {
  using R = Raw<L, T, kH, kC>;
  constexpr bool kMaybe = kTail || (kH && !L::kExactHeads) || (kC && !L::kExactChans);
  const T* p = (table.p + lane.template base<kH, kC>(kHead)) + row * kRow;
  R r;
  UNROLL for (int i = 0; i < R::NH; i++) UNROLL for (int v = 0; v < R::NV; v++)
    r.v[i][v] = load_words<R::N * (int)sizeof(T), kMaybe>(
        p + Lane<L>::template step<kH, kC>(i, v, kHead), live && (!kH || lane.head_ok(i)) && (!kC || lane.chan_ok(v)));
  return r;
}
template <bool kH, bool kC, class L, class T, bool kTail>
SWEEP_FN Raw<L, T, kH, kC> fetch(const T* table, i64 row, const Lane<L>& lane, Live<kTail> live) {
  return fetch<kH, kC>(Whole<kH, kC, L, const T>{table}, row, lane, live);
}
template <class L, class T, bool kH, bool kC> SWEEP_FN Frag<L, Reg<T>, kH, kC> widen(const Raw<L, T, kH, kC>& r) {
  Frag<L, Reg<T>, kH, kC> f;
  UNROLL for (int i = 0; i < r.NH; i++) UNROLL for (int v = 0; v < r.NV; v++) UNROLL for (int k = 0; k < r.N; k++)
    f.v[i][v * r.N + k] = element<T>(r.v[i][v], k);
  return f;
}
// Row and parameter loads: fetched and widened at once.
template <bool kH, bool kC, class L, class Table> SWEEP_FN auto load(Table table, i64 row, const Lane<L>& lane) {
  return widen(fetch<kH, kC>(table, row, lane, Always{}));
}

// Stores N consecutive elements, rounded once to T, in pieces of at most 16 bytes.
template <class T, int N> SWEEP_FN void store_vec(T* p, const Reg<T>* f) {
  constexpr int kBytes = N * (int)sizeof(T), kWords = kBytes < 4 ? 1 : kBytes / 4;
  u32 w[kWords];
  UNROLL for (int i = 0; i < kWords; i++) w[i] = 0;
  UNROLL for (int k = 0; k < N; k++) {
    const auto b = bits_of(Tag<T>{}, f[k]);
    if constexpr (sizeof(T) == 8) { w[2 * k] = (u32)b; w[2 * k + 1] = (u32)(b >> 32); }
    else if constexpr (sizeof(T) == 4) w[k] = b;
    else if constexpr (sizeof(T) == 2) w[k / 2] |= b << (16 * (k % 2));
    else w[k / 4] |= b << (8 * (k % 4));
  }
  if constexpr (kBytes >= 16) { UNROLL for (int i = 0; i < kWords; i += 4) *(uint4*)((u32*)p + i) = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]); }
  else if constexpr (kBytes == 8) *(uint2*)p = make_uint2(w[0], w[1]);
  else if constexpr (kBytes == 4) *(u32*)p = w[0];
  else if constexpr (kBytes == 2) *(unsigned short*)p = (unsigned short)w[0];
  else *(unsigned char*)p = (unsigned char)w[0];
}
// Writes x, spread over the dims it lacks, as row `row` of a table or view; `on` says whether this group writes at all.
template <bool kH, bool kC, class L, class T, int kRow, int kHead, class X>
SWEEP_FN void store_if(bool on, View<T, kRow, kHead> table, i64 row, const Lane<L>& lane, const X& x) {
  if (!on || !lane.template owns<kH, kC>()) return;
  using F = Frag<L, Reg<T>, kH, kC>;
  F f;
  set(f, x);
  T* p = (table.p + lane.template base<kH, kC>(kHead)) + row * kRow;
  constexpr int N = kC ? L::kVec : 1;
  UNROLL for (int i = 0; i < F::NH; i++) UNROLL for (int v = 0; v < F::NC / N; v++)
    if ((!kH || lane.head_ok(i)) && (!kC || lane.chan_ok(v)))
      store_vec<T, N>(p + Lane<L>::template step<kH, kC>(i, v, kHead), f.v[i] + v * N);
}
template <bool kH, bool kC, class L, class T, class X> SWEEP_FN void store_if(bool on, T* table, i64 row, const Lane<L>& lane, const X& x) {
  store_if<kH, kC>(on, Whole<kH, kC, L, T>{table}, row, lane, x);
}

}  // namespace sweep
