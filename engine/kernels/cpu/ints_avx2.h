// Eight 32-bit integers in a register, for `words4.h`: AVX2.
#pragma once

#include "vec_avx2.h"

namespace stoker {
namespace {

using I = __m256i;
constexpr int kWordAlone = 4, kWordTogether = 1, kWordTokens = 4;  // vectors of rows for one token; vectors and tokens of a tile

inline I load_int(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline I load_int_part(const void* p, int64_t bytes) {
  uint8_t part[32] = {};
  memcpy(part, p, size_t(bytes));
  return load_int(part);
}
inline void store_int(void* p, I a) { _mm256_storeu_si256((__m256i*)p, a); }
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
// Four products of unsigned codes and signed activations, four bytes each, summed. Eight products of 15 and 127 fit 16 bits.
inline I dot16(I a, I x, I b, I y, I c, I z, I d, I w) {
  const I pairs = _mm256_add_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(a, x), _mm256_maddubs_epi16(b, y)),
                                   _mm256_add_epi16(_mm256_maddubs_epi16(c, z), _mm256_maddubs_epi16(d, w)));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
inline I eight_lanes(int a, int b, int c, int d, int e, int f, int g, int h) { return _mm256_setr_epi32(a, b, c, d, e, f, g, h); }
inline I nibbles_at(const uint8_t* word, I shifts) {
  return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(read<int32_t>(word)), shifts), _mm256_set1_epi32(15));
}

}  // namespace
}  // namespace stoker
