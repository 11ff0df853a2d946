// Eight 32-bit integers in a register, for 4-bit weights: AVX2.
#pragma once

#include "vec_avx2.h"

namespace stoker {
namespace {

using I = __m256i;
constexpr int kWordTogether = 1, kWordTokens = 4;  // vectors of rows and tokens that share a load

inline I load_int(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline I load_int_part(const void* p, int64_t bytes) {
  uint8_t part[32] = {};
  memcpy(part, p, size_t(bytes));
  return load_int(part);
}
inline void store_int(void* p, I a) { _mm256_storeu_si256((__m256i*)p, a); }
inline void store_bytes(void* p, I a) {  // of each lane the lowest
  const I low = _mm256_shuffle_epi8(a, _mm256_set1_epi32(0x0c080400));
  const int32_t halves[2] = {_mm256_extract_epi32(low, 0), _mm256_extract_epi32(low, 4)};
  memcpy(p, halves, 8);
}
inline F to_float(I a) { return _mm256_cvtepi32_ps(a); }
inline I low_nibbles(I a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
inline I high_nibbles(I a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
inline I weave8_low(I a, I b) { return _mm256_unpacklo_epi8(a, b); }
inline I weave8_high(I a, I b) { return _mm256_unpackhi_epi8(a, b); }
inline I weave16_low(I a, I b) { return _mm256_unpacklo_epi16(a, b); }
inline I weave16_high(I a, I b) { return _mm256_unpackhi_epi16(a, b); }
inline F pick_even(F a, F b) { return _mm256_shuffle_ps(a, b, 0x88); }  // per 128 bits
inline F pick_odd(F a, F b) { return _mm256_shuffle_ps(a, b, 0xdd); }
inline void store_lanes(F a, float* out, int64_t stride) {
  _mm_storeu_ps(out, _mm256_castps256_ps128(a));
  _mm_storeu_ps(out + stride, _mm256_extractf128_ps(a, 1));
}
inline I spread4(const int8_t* p) { return _mm256_set1_epi32(read<int32_t>(p)); }
// Unsigned codes times signed activations, four bytes each, added up in pairs: eight products of 15 and 127 fit 16 bits.
inline I no_sum() { return _mm256_setzero_si256(); }
inline I dot4(I sum, I codes, I x) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x)); }
inline I sum_of_dots(I sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
inline F four_times(const float* p) {  // each of W / 4
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_set1_ps(p[0])), _mm_set1_ps(p[1]), 1);
}
// most - (word >> shift & 15) in every byte of a lane.
inline I lifts_of(I words, int shift, int most) {
  const I nibble = _mm256_and_si256(_mm256_srl_epi32(words, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(15));
  const __m128i lowest = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
  const I spread = _mm256_shuffle_epi8(nibble, _mm256_broadcastsi128_si256(lowest));
  return _mm256_sub_epi8(_mm256_set1_epi8(char(most)), spread);
}
inline I eight_lanes(int a, int b, int c, int d, int e, int f, int g, int h) {
  return _mm256_setr_epi32(a, b, c, d, e, f, g, h);
}
inline I nibbles_at(const uint8_t* word, I shifts) {
  return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(read<int32_t>(word)), shifts), _mm256_set1_epi32(15));
}

}  // namespace
}  // namespace stoker
