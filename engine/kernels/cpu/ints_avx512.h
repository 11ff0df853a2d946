// Sixteen 32-bit integers in a register, for `words4.h`: AVX-512 with VNNI.
#pragma once

#include "vec_avx512.h"

namespace stoker {
namespace {

using I = __m512i;
constexpr int kWordAlone = 8, kWordTogether = 2, kWordTokens = 8;  // vectors of rows for one token; vectors and tokens of a tile

inline I load_int(const void* p) { return _mm512_loadu_si512(p); }
inline I load_int_part(const void* p, int64_t bytes) { return _mm512_maskz_loadu_epi8((uint64_t(1) << bytes) - 1, p); }  // below 64
inline void store_int(void* p, I a) { _mm512_storeu_si512(p, a); }
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline I low_nibbles(I a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline I high_nibbles(I a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
inline I weave8_low(I a, I b) { return _mm512_unpacklo_epi8(a, b); }
inline I weave8_high(I a, I b) { return _mm512_unpackhi_epi8(a, b); }
inline I weave16_low(I a, I b) { return _mm512_unpacklo_epi16(a, b); }
inline I weave16_high(I a, I b) { return _mm512_unpackhi_epi16(a, b); }
inline F pick_even(F a, F b) { return _mm512_shuffle_ps(a, b, 0x88); }  // per 128 bits
inline F pick_odd(F a, F b) { return _mm512_shuffle_ps(a, b, 0xdd); }
inline void store_lanes(F a, float* out, int64_t stride) {
  _mm_storeu_ps(out, _mm512_castps512_ps128(a));
  _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(a, 1));
  _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(a, 2));
  _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(a, 3));
}
inline I spread4(const int8_t* p) { return _mm512_set1_epi32(read<int32_t>(p)); }
// Four products of unsigned codes and signed activations, four bytes each, summed.
inline I dot16(I a, I x, I b, I y, I c, I z, I d, I w) {
  return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), a, x), b, y), c, z), d, w);
}
inline I eight_lanes(int a, int b, int c, int d, int e, int f, int g, int h) {
  return _mm512_setr_epi32(a, b, c, d, e, f, g, h, a, b, c, d, e, f, g, h);
}
inline I nibbles_at(const uint8_t* words, I shifts) {  // of two words, eight lanes each
  const I both = _mm512_inserti64x4(_mm512_set1_epi32(read<int32_t>(words)), _mm256_set1_epi32(read<int32_t>(words + 4)), 1);
  return _mm512_and_si512(_mm512_srlv_epi32(both, shifts), _mm512_set1_epi32(15));
}

}  // namespace
}  // namespace stoker
