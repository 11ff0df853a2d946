// Four floats in a register: AArch64 Advanced SIMD.
#pragma once

#include <arm_neon.h>

#include "scalar.h"

namespace stoker {
namespace {

constexpr int W = 4;
using F = float32x4_t;

inline F set1(float a) { return vdupq_n_f32(a); }
inline F zero() { return set1(0.0f); }
inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F a) { vst1q_f32(p, a); }
inline F load_part(const float* p, int64_t count) {
  float part[W] = {};
  memcpy(part, p, size_t(count) * 4);
  return load(part);
}
inline void store_part(float* p, F a, int64_t count) {
  float part[W];
  store(part, a);
  memcpy(p, part, size_t(count) * 4);
}
inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F sub(F a, F b) { return vsubq_f32(a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F div(F a, F b) { return vdivq_f32(a, b); }
inline F vmin(F a, F b) { return vminq_f32(a, b); }
inline F vmax(F a, F b) { return vmaxq_f32(a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline float sum(F a) { return vaddvq_f32(a); }
inline float highest(F a) { return vmaxvq_f32(a); }
inline F nearest(F a) { return vrndnq_f32(a); }
inline F times_pow2(F a, F n) {  // n integral, -126 to 127
  return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23)));
}

inline uint32x4_t widen_bytes(const uint8_t* p) {
  const uint8x8_t bytes = vcreate_u8(stoker::read<uint32_t>(p));
  return vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
}
inline F load_f16(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
inline F load_bf16(const uint8_t* p) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(p))), 16)); }
// The first of each two bf16.
inline F load_e4m3(const uint8_t* p) {  // times 2^-8
  const int16x8_t words = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(stoker::read<uint32_t>(p))));
  const int16x4_t halves = vand_s16(vshl_n_s16(vget_low_s16(words), 7), vdup_n_s16(int16_t(0xbf80)));
  return vcvt_f32_f16(vreinterpret_f16_s16(halves));
}
inline F load_i8(const uint8_t* p) {
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(stoker::read<uint32_t>(p)))))));
}
inline F load_e8m0(const uint8_t* p) {
  return vreinterpretq_f32_u32(vmaxq_u32(vshlq_n_u32(widen_bytes(p), 23), vdupq_n_u32(0x00400000)));
}
inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
}  // namespace stoker
