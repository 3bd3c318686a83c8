// sweep.cuh: the loops around a Program of the fragment path: chunks of rows, edges in flight, hub rows and sums over all rows.
//
// A generated Program holds what differs from layer to layer: which tables to load, the edge expression, how the fold states step
// and combine, what to store. It never mentions feature tails, shuffles between groups, warps or partials:
//
//   Row     row(lane, r, degree)                      values that do not change along a row
//   Edge    edge(lane, other, id, live)               registers of one edge in flight: raw loads only
//   State   init, combine, each                       the folds of the row
//   Carry   init, combine, each                       sums over all rows
//           step(lane, row, batch, state, carry)      the edge expression over one batch
//           store(lane, r, degree, state, carry)      finish, the expression after the folds, stores; once a row
//           store_carry(lane, carry)                  stores of the sums over all rows; once a launch
//
// Deterministic: no atomics; every combination happens in an order fixed by the lists and the launch shape.
namespace sweep {

struct None {                                                            // a Program without folds or without carries
  static constexpr int kWords = 0;
  SWEEP_FN void init() {}
  SWEEP_FN void combine(const None&) {}
  template <class F> SWEEP_FN void each(F) {}
};

// What the launch passes besides the buffers.
template <class Index> struct Work {
  const Index* list;        // chunks (row, first slot, end slot, partial or -1), hubs (row, first partial, end partial), or null for a map
  i64 count;                // chunks, hubs, rows of a map, or carry images
  const i64* indptr;
  const Index* neighbours;  // the other end of the edge in each slot
  const Index* edge_ids;    // the user's edge in each slot; null: the slot itself
  u32* partials;            // images of split rows
  u32* carries;             // images of sums over all rows
  i64 carry_base;           // the first carry image of this launch
};

// ---- images: word w of lane t at [w * kLanes + t]. Coalesced, and no state has to describe itself.
template <class L, class S> SWEEP_FN void save(S& s, u32* image, const Lane<L>& lane) {
  u32* p = image + lane.t;
  s.each([&](auto& r) {
    const auto b = bits_of(Tag<typename RegName<decltype(r)>::type>{}, r);
    *p = (u32)b;
    p += L::kLanes;
    if constexpr (sizeof(r) == 8) { *p = (u32)((u64)b >> 32); p += L::kLanes; }
  });
}
template <class L, class S> SWEEP_FN void restore(S& s, const u32* image, const Lane<L>& lane) {
  const u32* p = image + lane.t;
  s.each([&](auto& r) {
    using T = typename RegName<decltype(r)>::type;
    if constexpr (sizeof(T) == 8) { r = reg_of(Tag<T>{}, p[0], p[L::kLanes]); p += 2 * L::kLanes; }
    else { r = reg_of(Tag<T>{}, p[0]); p += L::kLanes; }
  });
}
template <class L, class S> __host__ __device__ constexpr i64 image_words() { return (i64)S::kWords * L::kLanes; }

// Merges the groups of a warp; group 0 ends with the whole, in ascending order.
template <class L, class S> SWEEP_FN void combine_groups(S& s) {
  UNROLL for (int o = L::kLanes; o < 32; o *= 2) {
    S other = s;
    other.each([o](auto& r) { r = shuffle_xor(r, o); });
    s.combine(other);
  }
}
// Merges the warps of a block into warp 0, in ascending order. `shared` holds one image a warp.
template <class L, class S> SWEEP_FN void combine_warps(S& s, u32* shared, const Lane<L>& lane) {
  const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  if (S::kWords == 0 || warps == 1) return;
  __syncthreads();
  if (lane.group == 0) save(s, shared + warp * image_words<L, S>(), lane);
  __syncthreads();
  if (warp == 0)
    for (int w = 1; w < warps; w++) {
      S other;
      restore(other, shared + w * image_words<L, S>(), lane);
      s.combine(other);
    }
}

// ---- the slots of one group: first, first + stride, ... ; `lo` and `hi` bound the counts of the warp's groups.
template <class Index> struct Walk {
  Index first, count, lo, hi;
  int stride;
  SWEEP_FN Index slot(Index i) const { return first + i * stride; }
};
template <class P> SWEEP_FN Walk<typename P::Index> walk_slots(typename P::Index begin, typename P::Index end, int group) {
  using Index = typename P::Index;
  constexpr int G = P::L::kGroups;
  const Index n = end - begin;
  if constexpr (P::kGroupRows) {                                          // a row a group: as long as the longest of them
    Index lo = n, hi = n;
    UNROLL for (int o = P::L::kLanes; o < 32; o *= 2) {
      const Index a = shuffle_xor(lo, o), b = shuffle_xor(hi, o);
      lo = a < lo ? a : lo;
      hi = b > hi ? b : hi;
    }
    return {begin, n, lo, hi, 1};
  } else if constexpr (P::kOrdered) {                                     // a run of slots a group: combine sees edges in order
    const Index per = (n + G - 1) / G, at = group * per, left = n - at, last = n - (G - 1) * per;
    return {begin + at, left < 0 ? 0 : left < per ? left : per, last < 0 ? 0 : last, per, 1};
  } else {                                                                // every G-th slot a group
    return {begin + group, (n - group + G - 1) / G, n / G, (n + G - 1) / G, G};
  }
}

template <class P> struct Ends {
  typename P::Index other[P::U], id[P::U];
  template <bool kTail> SWEEP_FN void load(const Work<typename P::Index>& w, const Walk<typename P::Index>& walk, typename P::Index i) {
    UNROLL for (int u = 0; u < P::U; u++) {
      const auto slot = walk.slot(i + u);
      const bool live = !kTail || i + u < walk.count;
      if constexpr (P::kOther) other[u] = live ? __ldg(w.neighbours + slot) : 0;
      if constexpr (P::kId) id[u] = !live ? 0 : w.edge_ids ? __ldg(w.edge_ids + slot) : slot;
    }
  }
};

template <class P, bool kTail> struct Batch {
  static constexpr int U = P::U;
  typename P::Edge edge[U];
  typename P::Index ids[U], i, count;                                     // edges' ids; position of edge 0, positions of this group
  SWEEP_FN Live<kTail> live(int u) const { return {!kTail || i + u < count}; }
  SWEEP_FN typename P::Index id(int u) const { return ids[u]; }
  SWEEP_FN void fill(const P& p, const Lane<typename P::L>& lane, const Ends<P>& ends, typename P::Index i_, typename P::Index count_) {
    i = i_;
    count = count_;
    UNROLL for (int u = 0; u < U; u++) {
      if constexpr (P::kId) ids[u] = ends.id[u];
      edge[u] = p.edge(lane, ends.other[u], ends.id[u], live(u));
    }
  }
};

// One warp: full batches without a mask, then masked ones for what is left.
template <class P>
SWEEP_FN void sweep_slots(const P& p, const Work<typename P::Index>& w, const Lane<typename P::L>& lane, const typename P::Row& row,
                          const Walk<typename P::Index>& walk, typename P::State& state, typename P::Carry& carry) {
  using Index = typename P::Index;
  constexpr int U = P::U;
  Ends<P> ends;
  Index i = 0;
  if constexpr (P::kPrefetch) if (walk.hi > 0) ends.template load<true>(w, walk, 0);
  for (; i + U <= walk.lo; i += U) {
    Batch<P, false> b;
    if constexpr (!P::kPrefetch) ends.template load<false>(w, walk, i);
    b.fill(p, lane, ends, i, walk.count);
    if constexpr (P::kPrefetch) ends.template load<true>(w, walk, i + U);
    if constexpr (P::kFence) __syncwarp();
    p.step(lane, row, b, state, carry);
  }
  for (; i < walk.hi; i += U) {
    Batch<P, true> b;
    if constexpr (!P::kPrefetch) ends.template load<true>(w, walk, i);
    b.fill(p, lane, ends, i, walk.count);
    if constexpr (P::kPrefetch) ends.template load<true>(w, walk, i + U);
    p.step(lane, row, b, state, carry);
  }
}

template <class P> SWEEP_FN i64 degree_of(const Work<typename P::Index>& w, i64 r) {
  if constexpr (P::kDegree) return __ldg(w.indptr + r + 1) - __ldg(w.indptr + r);
  else return 0;
}

// One warp: item `k` is a chunk (kGroupRows: one a group; a map: one row a group).
template <class P>
SWEEP_FN void sweep_item(const P& p, const Work<typename P::Index>& w, Lane<typename P::L>& lane, i64 k, typename P::Carry& carry) {
  using L = typename P::L;
  using Index = typename P::Index;
  bool active = true;
  if constexpr (P::kGroupRows) {
    k = k * L::kGroups + lane.group;
    active = k < w.count;
    k = active ? k : w.count - 1;                                         // a group without an item goes along and stores nothing
    lane.lead = active;
  }
  typename P::State state;
  state.init();
  if constexpr (P::kMap) {
    p.store(lane, k, 0, state, carry);
  } else {
    const Index* chunk = w.list + 4 * k;
    const Index r = __ldg(chunk), begin = __ldg(chunk + 1), end = __ldg(chunk + 2), partial = __ldg(chunk + 3);
    const i64 degree = degree_of<P>(w, r);
    {
      const typename P::Row row = p.row(lane, r, degree);
      sweep_slots(p, w, lane, row, walk_slots<P>(begin, active ? end : begin, lane.group), state, carry);
    }
    if constexpr (!P::kGroupRows) combine_groups<L>(state);
    if constexpr (P::kGroupRows) {
      // Groups differ in what they do with their row, but shuffles in `store` need all lanes: so it runs for all of them.
      lane.lead = active && partial < 0;
      p.store(lane, r, degree, state, carry);
      lane.lead = active;
    } else if (partial < 0) p.store(lane, r, degree, state, carry);
    if (P::State::kWords > 0 && lane.lead && partial >= 0)
      save(state, w.partials + ((i64)partial * L::kSlices + lane.slice) * image_words<L, typename P::State>(), lane);
  }
}

template <class P> SWEEP_FN void save_carry(const Work<typename P::Index>& w, typename P::Carry& carry, const Lane<typename P::L>& lane) {
  using L = typename P::L;
  if (threadIdx.x < L::kLanes)
    save(carry, w.carries + ((w.carry_base + blockIdx.x) * L::kSlices + lane.slice) * image_words<L, typename P::Carry>(), lane);
}

// Kernel 1: any grid. Items go round the warps; with a Carry each block leaves one image.
template <class P> SWEEP_FN void run(const P& p, const Work<typename P::Index>& w) {
  using L = typename P::L;
  constexpr int kItem = P::kGroupRows ? L::kGroups : 1;
  using Count = typename Choose<sizeof(typename P::Index) == 4 && L::kSlices == 1, u32, i64>::type;   // 64 bits cost registers
  const Count warps = (Count)gridDim.x * (blockDim.x >> 5), warp = (Count)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  const Count items = (Count)((w.count + kItem - 1) / kItem);
  if constexpr (P::kCarry) {
    SWEEP_SHARED(shared);
    for (int slice = 0; slice < L::kSlices; slice++) {
      Lane<L> lane(slice);
      typename P::Carry carry;
      carry.init();
      for (Count k = warp; k < items; k += warps) sweep_item(p, w, lane, k, carry);
      combine_groups<L>(carry);
      combine_warps(carry, shared, lane);
      save_carry<P>(w, carry, lane);
    }
  } else {
    typename P::Carry carry;
    for (Count k = warp; k < items * L::kSlices; k += warps) {            // slice by slice, so that a slice stays in the cache
      const int slice = L::kSlices == 1 ? 0 : (int)(k / items);
      Lane<L> lane(slice);
      sweep_item(p, w, lane, k - slice * items, carry);
    }
  }
}

// Combines images first ... end - 1 in order: each warp and group takes a run of them. Warp 0, group 0 ends with the whole.
template <class L, class S> SWEEP_FN void gather_images(S& s, const u32* images, i64 first, i64 end, u32* shared, const Lane<L>& lane) {
  s.init();
  const i64 parts = (i64)(blockDim.x >> 5) * L::kGroups, per = (end - first + parts - 1) / parts;
  const i64 at = first + ((threadIdx.x >> 5) * L::kGroups + lane.group) * per, stop = at + per < end ? at + per : end;
  _Pragma("unroll 2") for (i64 k = at; k < stop; k++) {
    S other;
    restore(other, images + (k * L::kSlices + lane.slice) * image_words<L, S>(), lane);
    s.combine(other);
  }
  combine_groups<L>(s);
  combine_warps(s, shared, lane);
}

// Kernel 2: hub rows, one a block at a time. With a Carry each block leaves one image more.
template <class P> SWEEP_FN void merge(const P& p, const Work<typename P::Index>& w) {
  using L = typename P::L;
  SWEEP_SHARED(shared);
  for (int slice = 0; slice < L::kSlices; slice++) {
    Lane<L> lane(slice);
    lane.lead = threadIdx.x < L::kLanes;
    typename P::Carry carry;
    carry.init();
    for (i64 k = blockIdx.x; k < w.count; k += gridDim.x) {
      const i64 r = __ldg(w.list + 3 * k), first = __ldg(w.list + 3 * k + 1), end = __ldg(w.list + 3 * k + 2);
      typename P::State state;
      gather_images(state, w.partials, first, end, shared, lane);
      if (threadIdx.x < 32) p.store(lane, r, degree_of<P>(w, r), state, carry);
    }
    if constexpr (P::kCarry) save_carry<P>(w, carry, lane);               // only warp 0, group 0 has added to it
  }
}

// Kernel 3: the sums over all rows, from every carry image; one block.
template <class P> SWEEP_FN void merge_carry(const P& p, const Work<typename P::Index>& w) {
  using L = typename P::L;
  SWEEP_SHARED(shared);
  for (int slice = blockIdx.x; slice < L::kSlices; slice += gridDim.x) {
    Lane<L> lane(slice);
    lane.lead = threadIdx.x < L::kLanes;
    typename P::Carry carry;
    gather_images(carry, w.carries, 0, w.count, shared, lane);
    if (threadIdx.x < 32) p.store_carry(lane, carry);
  }
}

// How a Program is mapped. kPrefetch: the next batch's neighbours are loaded before this batch is worked on. kFence: a warp barrier keeps
// ptxas from sinking a batch's loads to their uses (it does so in loops without shuffles when kPrefetch is on).
template <class L_, class Index_, int kUnroll, bool kGroupRows_ = false, bool kPrefetch_ = false, bool kFence_ = false> struct Schedule {
  using L = L_;
  using Index = Index_;
  static constexpr int U = kUnroll;
  static constexpr bool kGroupRows = kGroupRows_, kPrefetch = kPrefetch_, kFence = kFence_;
};
#define EACH_EDGE(u) UNROLL for (int u = 0; u < U; u++)

}  // namespace sweep
