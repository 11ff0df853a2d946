// Sixteen floats in a register: AVX-512 F, BW, DQ, VL.
#pragma once

#include <immintrin.h>

#include "scalar.h"

namespace stoker {
namespace {

#define STOKER_HAS_SUMS
#define STOKER_HAS_TRANSPOSE
constexpr int W = 16;
using F = __m512;

inline F zero() { return _mm512_setzero_ps(); }
inline F set1(float a) { return _mm512_set1_ps(a); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
inline __mmask16 first(int64_t count) { return __mmask16((1u << count) - 1); }
inline F load_part(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(first(count), p); }
inline void store_part(float* p, F a, int64_t count) { _mm512_mask_storeu_ps(p, first(count), a); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F vmin(F a, F b) { return _mm512_min_ps(a, b); }
inline F vmax(F a, F b) { return _mm512_max_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline float sum(F a) { return _mm512_reduce_add_ps(a); }
inline float highest(F a) { return _mm512_reduce_max_ps(a); }
inline F nearest(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F times_pow2(F a, F n) { return _mm512_scalef_ps(a, n); }

inline F load_f16(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline F load_bf16(const uint8_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
// The first of each two bf16.
inline F load_e4m3(const uint8_t* p) {  // times 2^-8
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(int16_t(0xbf80))));
}
inline F load_i8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
inline F load_e8m0(const uint8_t* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000)));
}
// Sums of four vectors, by half the shuffles of four single sums.
inline __m128 sums_of(F a, F b, F c, F d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Lane i of out[d] = dword d of row i, of 16 rows of 64 bytes.
inline void transpose(const __m512i (&in)[16], __m512i (&out)[16]) {
  __m512i a[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {  // dwords within each 128-bit lane: a[i + j] = dword j of lanes, rows i to i + 3
    const __m512i lo01 = _mm512_unpacklo_epi32(in[i], in[i + 1]), hi01 = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    const __m512i lo23 = _mm512_unpacklo_epi32(in[i + 2], in[i + 3]), hi23 = _mm512_unpackhi_epi32(in[i + 2], in[i + 3]);
    a[i] = _mm512_unpacklo_epi64(lo01, lo23);
    a[i + 1] = _mm512_unpackhi_epi64(lo01, lo23);
    a[i + 2] = _mm512_unpacklo_epi64(hi01, hi23);
    a[i + 3] = _mm512_unpackhi_epi64(hi01, hi23);
  }
#pragma GCC unroll 16
  for (int j = 0; j < 4; ++j) {  // then the lanes themselves
    const __m512i b0 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x44), b1 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xee);
    const __m512i b2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x44), b3 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xee);
    out[j] = _mm512_shuffle_i32x4(b0, b2, 0x88);
    out[4 + j] = _mm512_shuffle_i32x4(b0, b2, 0xdd);
    out[8 + j] = _mm512_shuffle_i32x4(b1, b3, 0x88);
    out[12 + j] = _mm512_shuffle_i32x4(b1, b3, 0xdd);
  }
}

inline void transpose(const F (&in)[16], F (&out)[16]) {
  __m512i from[16], to[16];
  for (int i = 0; i < 16; ++i) from[i] = _mm512_castps_si512(in[i]);
  transpose(from, to);
  for (int i = 0; i < 16; ++i) out[i] = _mm512_castsi512_ps(to[i]);
}

// Into the second level: its misses in flight are what bounds a core's bandwidth, the first level has half as many.
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

}  // namespace
}  // namespace stoker
