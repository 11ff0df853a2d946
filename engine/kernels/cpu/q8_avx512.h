// 4-bit weights times int8 activations with AVX-512 VNNI: a row kernel for one token, a tile kernel for more.
#pragma once

#include "vec_avx512.h"

#include "scales4.h"  // over the vectors above

namespace stoker {
namespace {

// --- activations -------------------------------------------------------------------------------------------------------

// Sixteen columns: int8 with one scale. A NaN or infinity makes the scale NaN, and so the whole product.
inline void quantise_group(const float* x, int64_t count, int bias, Q8Block& block, int64_t group) {
  const F values = count == 16 ? load(x) : load_part(x, count);
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff));
  const uint32_t highest_bits = uint32_t(_mm512_reduce_max_epi32(magnitude));  // ordered as the floats are, NaN above all
  const float most = from_bits(highest_bits);
  const bool finite = highest_bits < 0x7f800000;
  const float scale = finite ? most / 127.0f : from_bits(0x7fc00000);
  const float inverse = most > 1e-30f ? 127.0f / most : 0.0f;
  const __m512i codes = finite ? _mm512_cvtps_epi32(mul(values, set1(inverse))) : _mm512_setzero_si512();
  const __m128i bytes = _mm512_cvtsepi32_epi8(codes);
  const __m128i apart = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  _mm_storel_epi64((__m128i*)(block.even + 8 * group), apart);
  _mm_storeh_pd((double*)(block.odd + 8 * group), _mm_castsi128_pd(apart));
  block.scale[2 * group] = block.scale[2 * group + 1] = scale;
  block.offset[2 * group] = -bias * _mm512_reduce_add_epi32(codes);
  block.offset[2 * group + 1] = 0;
}

// --- one token ---------------------------------------------------------------------------------------------------------

inline __m512i code_table() { return _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)kE2m1Codes)); }

template <bool E2m1>
inline void unpack(__m512i packed, __m512i table, __m512i& even, __m512i& odd) {
  odd = _mm512_srli_epi16(packed, 4);
#if defined(__AVX512VBMI__)
  if constexpr (E2m1) {  // indexes a table of 64 bytes, four times the same, so that the upper nibble does not matter
    even = _mm512_permutexvar_epi8(packed, table);
    odd = _mm512_permutexvar_epi8(odd, table);
    return;
  }
#endif
  const __m512i low = _mm512_set1_epi8(15);
  even = _mm512_and_si512(packed, low);
  odd = _mm512_and_si512(odd, low);
  if constexpr (E2m1) {
    even = _mm512_shuffle_epi8(table, even);
    odd = _mm512_shuffle_epi8(table, odd);
  }
}

// Scales of 128 columns, one to each lane of the dot product: 8 of them by pairs of lanes, 4 by fours.
template <int Unit>
inline F lane_scales(const float* at) {
  if constexpr (Unit == 16) {
    const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_loadu_ps(at)));
  }
  const __m512i fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(fours, _mm512_castps128_ps512(_mm_loadu_ps(at)));
}

inline __m512i lane_zeros(const uint8_t* at) {  // 4 bytes, each to the 16 bytes of 32 columns
  const __m512i spread = _mm512_set_epi64(0x0303030303030303, 0x0303030303030303, 0x0202020202020202, 0x0202020202020202,
                                          0x0101010101010101, 0x0101010101010101, 0, 0);
  return _mm512_shuffle_epi8(_mm512_set1_epi32(read<int32_t>(at)), spread);
}

inline int64_t padded_units(const stoker_matrix& m) { return blocks_of(m.cols, kQ8Columns) * 8 + 16; }

constexpr int64_t kSpread = 16;     // rows whose scales are spread at a time: 4 KB for 2048 columns
constexpr int64_t kAhead = 8 << 10;  // bytes: 25 GB/s for the 150 ns that memory takes are 4 KB, and as much for its jitter

// R rows times T tokens over 128 columns. Written breadth first: the scheduler holds few instructions that wait.
template <int R, int T, int Unit, bool E2m1, bool Zeroed, class Load>
inline void row_step(const uint8_t* const* w, const Q8Block* const* x, int64_t block, const float* scales, const uint8_t* lifts,
                     int64_t units, __m512i table, Load load_weights, F (&acc)[R][T]) {
  __m512i even[R], odd[R];
  F weight_scale[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) unpack<E2m1>(load_weights(w[r] + block * 64), table, even[r], odd[r]);
  if constexpr (Zeroed) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512i lift = lane_zeros(lifts + r * (units + kSpread) + block * 4);
      even[r] = _mm512_add_epi8(even[r], lift);
      odd[r] = _mm512_add_epi8(odd[r], lift);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) weight_scale[r] = lane_scales<Unit>(scales + r * units + block * (128 / Unit));
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const Q8Block& q = x[t][block];
    const __m512i x_even = _mm512_load_si512(q.even), x_odd = _mm512_load_si512(q.odd), offset = _mm512_load_si512(q.offset);
    const F scale = _mm512_load_ps(q.scale);
    __m512i sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(offset, even[r], x_even);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], odd[r], x_odd);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][t] = fma(_mm512_cvtepi32_ps(sum[r]), mul(weight_scale[r], scale), acc[r][t]);
  }
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

// Rows `row` on; `valid` of the R are wanted, the others repeat the last.
template <int R, int T, int Unit, bool E2m1, bool Zeroed>
void q8_row(const Rows& job, int64_t row, int64_t valid, int64_t token, const float* scales, const uint8_t* lifts) {
  const stoker_matrix& m = *job.matrix;
  const int64_t blocks = m.cols / kQ8Columns, tail = m.cols % kQ8Columns, units = m.cols / Unit;
  const __m512i table = code_table();
  const Q8Block* x[T];
  const uint8_t* w[R];
  F acc[R][T];
  for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const Q8Block*>(job.operand(token + t));
  for (int r = 0; r < R; ++r) {
    w[r] = row_of(m, r < valid ? row + r : row + valid - 1);
    for (F& lane : acc[r]) lane = zero();
  }
  for (int64_t block = 0; block < blocks; ++block) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) prefetch(w[r] + block * 64 + kAhead);
    row_step<R, T, Unit, E2m1, Zeroed>(w, x, block, scales, lifts, units, table, [](const uint8_t* p) { return _mm512_loadu_si512(p); }, acc);
  }
  if (tail != 0) {  // columns beyond the last have activations of 0, and any finite scale will do
    const __mmask64 some = (uint64_t(1) << tail / 2) - 1;
    row_step<R, T, Unit, E2m1, Zeroed>(w, x, blocks, scales, lifts, units, table,
                                       [=](const uint8_t* p) { return _mm512_maskz_loadu_epi8(some, p); }, acc);
  }
  for (int t = 0; t < T; ++t) {
    static_assert(R == 4);
    const __m128 sums = sums_of(acc[0][t], acc[1][t], acc[2][t], acc[3][t]);
    _mm_mask_storeu_ps(job.result(token + t, row), __mmask8((1 << valid) - 1), sums);
  }
}

template <int Unit, bool E2m1, bool Zeroed>
void q8_few(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  const int64_t units = m.cols / Unit;
  float* scales = reinterpret_cast<float*>(scratch);
  uint8_t* lifts = reinterpret_cast<uint8_t*>(scales + kSpread * units + 64);
  const auto prefetch_scales = [&](int64_t row) {  // their lines lie apart from the codes and come too late by themselves
    const char* at = static_cast<const char*>(m.scales) + row / m.block_rows * m.scale_row_stride;
    const int64_t bytes = (end - row < kSpread ? end - row : kSpread) * m.scale_row_stride;
    for (int64_t offset = 0; offset < bytes; offset += 64) prefetch(at + offset);
  };
  prefetch_scales(begin);
  for (int64_t first = begin; first < end; first += kSpread) {
    const int64_t last = end - first < kSpread ? end : first + kSpread;
    if (last < end) prefetch_scales(last);
    spread_rows(m, first, last - first, scales);
    memset(scales + (last - first) * units, 0, 8 * 4);  // what the last row's partial block reads beyond its end
    if constexpr (Zeroed)
      for (int64_t row = first; row < last; ++row) spread_zeros(m, row, lifts + (row - first) * (units + kSpread));
    for (int64_t row = first; row < last; row += 4) {
      const int64_t valid = last - row < 4 ? last - row : 4;
      const float* s = scales + (row - first) * units;
      const uint8_t* z = lifts + (row - first) * (units + kSpread);
      if (job.tokens == 1) q8_row<4, 1, Unit, E2m1, Zeroed>(job, row, valid, 0, s, z);
      if (job.tokens == 2) q8_row<4, 2, Unit, E2m1, Zeroed>(job, row, valid, 0, s, z);
      if (job.tokens == 3) q8_row<4, 3, Unit, E2m1, Zeroed>(job, row, valid, 0, s, z);
    }
  }
}

// --- several tokens ----------------------------------------------------------------------------------------------------

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

constexpr int64_t kTile = 16;     // rows, one to a lane
constexpr int64_t kBatch = 64;    // tokens whose sums and columns stay in the first-level cache

struct Tile {
  float* scales;  // [units][16 rows]
  uint8_t* zeros; // [units][16 rows]
  float* sums;    // [tokens][16 rows]
  char* rows;     // scratch of one row at a time
};

// 32 columns of 16 rows, given as 4 dwords of nibbles, times all tokens: their products are added to `sums`.
template <int Unit, bool E2m1, bool Zeroed>
inline void tile_step(const __m512i* packed, __m512i table, const float* scales, const uint8_t* zeros, const Q8Block* const* x,
                      int64_t block, int quarter, int64_t tokens, float* sums) {
  __m512i even[4], odd[4];
#pragma GCC unroll 4
  for (int d = 0; d < 4; ++d) unpack<E2m1>(packed[d], table, even[d], odd[d]);
  if constexpr (Zeroed) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)zeros));
    const __m512i lift = _mm512_mullo_epi32(bytes, _mm512_set1_epi32(0x01010101));
#pragma GCC unroll 4
    for (int d = 0; d < 4; ++d) {
      even[d] = _mm512_add_epi8(even[d], lift);
      odd[d] = _mm512_add_epi8(odd[d], lift);
    }
  }
  const F scale0 = load(scales), scale1 = Unit == 16 ? load(scales + kTile) : scale0;
  for (int64_t t = 0; t < tokens; ++t) {
    const Q8Block& q = x[t][block];
    const auto dword = [](const int8_t* p) { return _mm512_set1_epi32(stoker::read<int32_t>(p)); };
    __m512i d0 = _mm512_set1_epi32(q.offset[4 * quarter]), d1 = _mm512_set1_epi32(q.offset[4 * quarter + 2]);
    const int8_t *xe = q.even + 16 * quarter, *xo = q.odd + 16 * quarter;
    d0 = _mm512_dpbusd_epi32(d0, even[0], dword(xe));
    d1 = _mm512_dpbusd_epi32(d1, even[2], dword(xe + 8));
    d0 = _mm512_dpbusd_epi32(d0, odd[0], dword(xo));
    d1 = _mm512_dpbusd_epi32(d1, odd[2], dword(xo + 8));
    d0 = _mm512_dpbusd_epi32(d0, even[1], dword(xe + 4));
    d1 = _mm512_dpbusd_epi32(d1, even[3], dword(xe + 12));
    d0 = _mm512_dpbusd_epi32(d0, odd[1], dword(xo + 4));
    d1 = _mm512_dpbusd_epi32(d1, odd[3], dword(xo + 12));
    const F first = mul(_mm512_cvtepi32_ps(d0), set1(q.scale[4 * quarter]));
    const F s1 = set1(q.scale[4 * quarter + 2]), f1 = _mm512_cvtepi32_ps(d1);
    F total = _mm512_load_ps(sums + t * kTile);
    if constexpr (Unit == 16) total = fma(mul(f1, s1), scale1, fma(first, scale0, total));
    else total = fma(fma(f1, s1, first), scale0, total);
    _mm512_store_ps(sums + t * kTile, total);
  }
}

template <int Unit, bool Zeroed>
void tile_scales(const stoker_matrix& m, int64_t row, int64_t last, const Tile& tile) {
  const int64_t units = blocks_of(m.cols, kQ8Columns) * (128 / Unit);
  float* scales = reinterpret_cast<float*>(tile.rows);
  const int64_t stride = padded_units(m);
  for (int64_t r = 0; r < kTile; ++r) spread_scales(m, row + r < last ? row + r : last - 1, scales + r * stride);
  for (int64_t unit = 0; unit < units; unit += 16) {
    __m512i in[16], out[16];
    for (int r = 0; r < 16; ++r) in[r] = _mm512_loadu_si512(scales + r * stride + unit);
    transpose(in, out);
    for (int u = 0; u < 16 && unit + u < units; ++u) _mm512_store_si512(tile.scales + (unit + u) * kTile, out[u]);
  }
  if constexpr (Zeroed) {
    uint8_t* lifts = reinterpret_cast<uint8_t*>(tile.rows);
    for (int64_t r = 0; r < kTile; ++r) {
      spread_zeros(m, row + r < last ? row + r : last - 1, lifts);
      for (int64_t unit = 0; unit < units; ++unit) tile.zeros[unit * kTile + r] = unit < m.cols / 32 ? lifts[unit] : 0;
    }
  }
}

template <int Unit, bool E2m1, bool Zeroed>
void q8_tile(const Rows& job, int64_t row, int64_t last, const Tile& tile) {
  const stoker_matrix& m = *job.matrix;
  const __m512i table = code_table();
  tile_scales<Unit, Zeroed>(m, row, last, tile);
  const uint8_t* w[kTile];
  for (int64_t r = 0; r < kTile; ++r) w[r] = row_of(m, row + r < last ? row + r : last - 1);
  const int64_t blocks = blocks_of(m.cols, kQ8Columns);
  for (int64_t token = 0; token < job.tokens; token += kBatch) {
    const int64_t tokens = job.tokens - token < kBatch ? job.tokens - token : kBatch;
    const Q8Block* x[kBatch];
    for (int64_t t = 0; t < tokens; ++t) x[t] = reinterpret_cast<const Q8Block*>(job.operand(token + t));
    memset(tile.sums, 0, size_t(tokens * kTile) * 4);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t left = m.cols / 2 - block * 64;
      const __mmask64 valid = left >= 64 ? ~uint64_t(0) : (uint64_t(1) << left) - 1;
      __m512i in[16], packed[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) in[r] = _mm512_maskz_loadu_epi8(valid, w[r] + block * 64);
      transpose(in, packed);
#pragma GCC unroll 4
      for (int quarter = 0; quarter < 4; ++quarter) {
        const int64_t unit = (block * 4 + quarter) * (32 / Unit);
        tile_step<Unit, E2m1, Zeroed>(packed + 4 * quarter, table, tile.scales + unit * kTile,
                                      tile.zeros + (block * 4 + quarter) * kTile, x, block, quarter, tokens, tile.sums);
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const F sums = _mm512_load_ps(tile.sums + t * kTile);
      if (row + kTile <= last) store(job.result(token + t, row), sums);
      else store_part(job.result(token + t, row), sums, last - row);
    }
  }
}

// --- choice ------------------------------------------------------------------------------------------------------------

inline int64_t q8_scratch_bytes(const stoker_matrix& m) {
  const int64_t units = padded_units(m);
  return units * kTile * 4 + units * kTile + kBatch * kTile * 4 + kTile * units * 5 + 256;
}

template <int Unit, bool E2m1, bool Zeroed>
void q8_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  const int64_t units = padded_units(m);
  if (job.tokens < 4) return q8_few<Unit, E2m1, Zeroed>(job, begin, end, scratch);
  Tile tile;
  tile.scales = reinterpret_cast<float*>(scratch);
  tile.sums = tile.scales + units * kTile;
  tile.rows = reinterpret_cast<char*>(tile.sums + kBatch * kTile);
  tile.zeros = reinterpret_cast<uint8_t*>(tile.rows + kTile * units * 4);
  memset(tile.rows, 0, size_t(kTile * units * 4));
  for (int64_t row = begin; row < end; row += kTile) q8_tile<Unit, E2m1, Zeroed>(job, row, end, tile);
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
