// scratch.cuh: what the general path needs besides the scalar operations: reductions over a warp, in a fixed order.
namespace sweep {

template <class T> SWEEP_FN T warp_shuffle(T x, int o) {
  if constexpr (sizeof(T) >= 4) return __shfl_xor_sync(0xffffffffu, x, o);
  else return (T)__shfl_xor_sync(0xffffffffu, (int)x, o);
}
template <class T> SWEEP_FN T warp_sum(T x) {
  UNROLL for (int o = 16; o > 0; o /= 2) x = add(x, warp_shuffle(x, o));
  return x;
}
template <class T> SWEEP_FN T warp_max(T x) {
  UNROLL for (int o = 16; o > 0; o /= 2) x = maximum(x, warp_shuffle(x, o));
  return x;
}

}  // namespace sweep
