// 4-bit weights times int8 activations with AVX2: 16-bit sums of two products by vpmaddubsw. A code is at most 31, so that
// eight products of 31 and 127 fit a signed 16-bit lane.
#pragma once

#include "vec_avx2.h"

#include "q8_scalar.h"
#include "scales4.h"  // over the vectors above

namespace stoker {
namespace {

inline int64_t padded_units(const stoker_matrix& m) { return blocks_of(m.cols, kQ8Columns) * 16 + 16; }
inline int64_t q8_scratch_bytes(const stoker_matrix& m) { return 4 * padded_units(m) * 5 + 64; }

// Scales of the 128 columns in the lower or the upper eight lanes of a block, one to each lane.
template <int Unit>
inline F lane_scales(const float* at, int half) {
  if constexpr (Unit == 16) {
    const __m256i low = _mm256_setr_epi32(0, 1, 0, 1, 2, 3, 2, 3);
    const __m256i lanes = _mm256_add_epi32(low, _mm256_set1_epi32(4 * half));
    return _mm256_blend_ps(_mm256_permutevar8x32_ps(load(at), lanes), _mm256_permutevar8x32_ps(load(at + 8), lanes), 0xcc);
  }
  const __m256i lanes = _mm256_add_epi32(_mm256_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5), _mm256_set1_epi32(2 * half));
  return _mm256_permutevar8x32_ps(load(at), lanes);
}

inline __m256i lane_zeros(const uint8_t* at, int half) {  // 8 bytes, each to the lanes of 32 columns
  const __m256i lanes = _mm256_set_epi64x(0x0505050505050505, 0x0101010101010101, 0x0404040404040404, 0);
  return _mm256_shuffle_epi8(_mm256_set1_epi64x(read<int64_t>(at)), _mm256_add_epi8(lanes, _mm256_set1_epi8(char(2 * half))));
}

template <bool E2m1>
inline void unpack(__m256i packed, __m256i& even, __m256i& odd) {
  const __m256i low = _mm256_set1_epi8(15);
  even = _mm256_and_si256(packed, low);
  odd = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
  if constexpr (E2m1) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)kE2m1Codes));
    even = _mm256_shuffle_epi8(table, even);
    odd = _mm256_shuffle_epi8(table, odd);
  }
}

template <int R, int T, int Unit, bool E2m1, bool Zeroed>
void q8_group(const Rows& job, int64_t row, int64_t token, const float* scales, const uint8_t* zeros) {
  const stoker_matrix& m = *job.matrix;
  const int64_t units = padded_units(m), blocks = m.cols / kQ8Columns, tail = m.cols % kQ8Columns;
  const Q8Block* x[T];
  for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const Q8Block*>(job.operand(token + t));
  F acc[R][T];
  for (auto& of_row : acc)
    for (F& lane : of_row) lane = zero();
  const auto step = [&](const uint8_t* const* w, int64_t block) {
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m256 a = load(reinterpret_cast<const float*>(w[r] + 32 * half));
        const __m256 b = load(reinterpret_cast<const float*>(w[r] + 64 + 32 * half));
        __m256i even[2], odd[2];
        unpack<E2m1>(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), even[0], odd[0]);
        unpack<E2m1>(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), even[1], odd[1]);
        if constexpr (Zeroed) {
          const __m256i lift = lane_zeros(zeros + r * units + block * 8, half);
          for (int h = 0; h < 2; ++h) {
            even[h] = _mm256_add_epi8(even[h], lift);
            odd[h] = _mm256_add_epi8(odd[h], lift);
          }
        }
        const F weight_scale = lane_scales<Unit>(scales + r * units + block * (256 / Unit), half);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          const Q8Block& q = x[t][block];
          const auto eight = [&](const int8_t* p) { return _mm256_load_si256((const __m256i*)(p + 32 * half)); };
          const __m256i pairs =
              _mm256_add_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(even[0], eight(q.even[0])), _mm256_maddubs_epi16(odd[0], eight(q.odd[0]))),
                               _mm256_add_epi16(_mm256_maddubs_epi16(even[1], eight(q.even[1])), _mm256_maddubs_epi16(odd[1], eight(q.odd[1]))));
          const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)),
                                                    _mm256_load_si256((const __m256i*)(q.offset + 8 * half)));
          acc[r][t] = fma(mul(_mm256_cvtepi32_ps(products), _mm256_load_ps(q.scale + 8 * half)), weight_scale, acc[r][t]);
        }
      }
    }
  };
  for (int64_t block = 0; block < blocks; ++block) {
    const uint8_t* w[R];
    for (int r = 0; r < R; ++r) w[r] = row_of(m, row + r) + block * 128;
    for (int r = 0; r < R; ++r) prefetch(w[r] + R * m.row_stride);
    step(w, block);
  }
  if (tail != 0) {
    uint8_t part[R][128] = {};
    const uint8_t* w[R];
    for (int r = 0; r < R; ++r) {
      memcpy(part[r], row_of(m, row + r) + blocks * 128, size_t(tail) / 2);
      w[r] = part[r];
    }
    step(w, blocks);
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) *job.result(token + t, row + r) = sum(acc[r][t]);
}

template <int R, int Unit, bool E2m1, bool Zeroed>
void q8_tokens(const Rows& job, int64_t row, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  const int64_t units = padded_units(m);
  float* scales = reinterpret_cast<float*>(scratch);
  uint8_t* zeros = reinterpret_cast<uint8_t*>(scratch + 4 * units * 4);
  for (int r = 0; r < R; ++r) {
    spread_scales(m, row + r, scales + r * units);
    if constexpr (Zeroed) spread_zeros(m, row + r, zeros + r * units);
  }
  int64_t token = 0;
  for (; token + 4 <= job.tokens; token += 4) q8_group<R, 4, Unit, E2m1, Zeroed>(job, row, token, scales, zeros);
  for (; token < job.tokens; ++token) q8_group<R, 1, Unit, E2m1, Zeroed>(job, row, token, scales, zeros);
}

template <int Unit, bool E2m1, bool Zeroed>
void q8_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  memset(scratch, 0, size_t(4 * padded_units(*job.matrix) * 5));
  int64_t row = begin;
  for (; row + 2 <= end; row += 2) q8_tokens<2, Unit, E2m1, Zeroed>(job, row, scratch);
  for (; row < end; ++row) q8_tokens<1, Unit, E2m1, Zeroed>(job, row, scratch);
}

void q8_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  if (m.format == STOKER_E2M1) {
    if (scale_unit(m) == 16) return q8_rows<16, true, false>(job, begin, end, scratch);
    return q8_rows<32, true, false>(job, begin, end, scratch);
  }
  if (m.zeros != nullptr) return q8_rows<32, false, true>(job, begin, end, scratch);
  if (scale_unit(m) == 16) return q8_rows<16, false, false>(job, begin, end, scratch);
  return q8_rows<32, false, false>(job, begin, end, scratch);
}

constexpr bool kHasQ8 = true;

}  // namespace
}  // namespace stoker
