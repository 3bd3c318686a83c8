// half.cuh: 16-bit storage. Included only where a buffer is f16 or bf16; arithmetic is always f32.
namespace sweep {

#ifdef SWEEP_F16
using f16 = __half;
template <> struct RegOf<f16> { using type = f32; };
SWEEP_FN f32 reg_of(Tag<f16>, u32 w) { return __half2float(__ushort_as_half((unsigned short)w)); }
SWEEP_FN u32 bits_of(Tag<f16>, f32 x) { return __half_as_ushort(__float2half_rn(x)); }
SWEEP_FN f32 get(const f16* p, i64 i) { return __half2float(p[i]); }
SWEEP_FN void put(f16* p, i64 i, f32 x) { p[i] = __float2half_rn(x); }
#endif

#ifdef SWEEP_BF16
using bf16 = __nv_bfloat16;
template <> struct RegOf<bf16> { using type = f32; };
SWEEP_FN f32 reg_of(Tag<bf16>, u32 w) { return __uint_as_float(w << 16); }
SWEEP_FN u32 bits_of(Tag<bf16>, f32 x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
SWEEP_FN f32 get(const bf16* p, i64 i) { return reg_of(Tag<bf16>{}, __bfloat16_as_ushort(p[i])); }
SWEEP_FN void put(bf16* p, i64 i, f32 x) { p[i] = __float2bfloat16_rn(x); }
#endif

// x as storage of dtype T would keep it (a cast in the middle of a program).
template <class T> SWEEP_FN f32 round_to(f32 x) { return reg_of(Tag<T>{}, bits_of(Tag<T>{}, x)); }

}  // namespace sweep
