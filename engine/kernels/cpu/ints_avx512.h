// Sixteen 32-bit integers in a register, for 4-bit weights: AVX-512 with VNNI.
#pragma once

#include "vec_avx512.h"

namespace stoker {
namespace {

using I = __m512i;
constexpr int kWordTogether = 2, kWordTokens = 8;  // vectors of rows and tokens that share a load

inline I load_int(const void* p) { return _mm512_loadu_si512(p); }
inline I load_int_part(const void* p, int64_t bytes) {  // below 64
  return _mm512_maskz_loadu_epi8((uint64_t(1) << bytes) - 1, p);
}
inline void store_int(void* p, I a) { _mm512_storeu_si512(p, a); }
inline void store_bytes(void* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }  // of each lane the lowest
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
// Unsigned codes times signed activations, four bytes each, added up.
inline I no_sum() { return _mm512_setzero_si512(); }
inline I dot4(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
inline I sum_of_dots(I sum) { return sum; }
inline F four_times(const float* p) {  // each of W / 4
  const I lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_loadu_ps(p)));
}
// most - (word >> shift & 15) in every byte of a lane.
inline I lifts_of(I words, int shift, int most) {
  const I nibble = _mm512_and_si512(_mm512_srl_epi32(words, _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(15));
  const __m128i lowest = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
  const I spread = _mm512_shuffle_epi8(nibble, _mm512_broadcast_i32x4(lowest));
  return _mm512_sub_epi8(_mm512_set1_epi8(char(most)), spread);
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
