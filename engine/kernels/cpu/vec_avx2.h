// Eight floats in a register: AVX2, FMA, F16C.
#pragma once

#include <immintrin.h>

#include "scalar.h"

namespace stoker {
namespace {

constexpr int W = 8;
using F = __m256;

inline F zero() { return _mm256_setzero_ps(); }
inline F set1(float a) { return _mm256_set1_ps(a); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F a) { _mm256_storeu_ps(p, a); }
inline __m256i first(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F load_part(const float* p, int64_t count) { return _mm256_maskload_ps(p, first(count)); }
inline void store_part(float* p, F a, int64_t count) { _mm256_maskstore_ps(p, first(count), a); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F vmin(F a, F b) { return _mm256_min_ps(a, b); }
inline F vmax(F a, F b) { return _mm256_max_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline float sum(F a) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline float highest(F a) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
inline F nearest(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F times_pow2(F a, F n) {  // n integral, -126 to 127
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)));
}

inline F load_f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline F load_bf16(const uint8_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
// The first of each two bf16.
inline F load_e4m3(const uint8_t* p) {  // times 2^-8
  const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(int16_t(0xbf80))));
}
inline F load_i8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
inline F load_e8m0(const uint8_t* p) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(bytes, 23), _mm256_set1_epi32(0x00400000)));
}
// Into the second level: its misses in flight are what bounds a core's bandwidth, the first level has half as many.
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

}  // namespace
}  // namespace stoker
