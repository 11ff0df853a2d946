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
  // even columns of the first 8, of the last 8, odd columns likewise
  const __m128i apart = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const int64_t lane = q8_lane(group);
  int8_t* const to[4] = {block.even[0], block.even[1], block.odd[0], block.odd[1]};
  alignas(16) int32_t quads[4];
  _mm_store_si128((__m128i*)quads, apart);
  for (int i = 0; i < 4; ++i) memcpy(to[i] + 4 * lane, quads + i, 4);
  block.scale[lane] = scale;
  block.offset[lane] = -bias * _mm512_reduce_add_epi32(codes);
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

// Scales of 256 columns, one to each lane of the dot product.
template <int Unit>
inline F lane_scales(const float* at) {
  if constexpr (Unit == 16) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    return _mm512_permutexvar_ps(lanes, load(at));
  }
  const __m512i lanes = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
  return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(_mm256_loadu_ps(at)));
}

inline __m512i lane_zeros(const uint8_t* at) {  // 8 bytes, each to the lanes of 32 columns
  const __m512i spread = _mm512_set_epi64(0x0707070707070707, 0x0303030303030303, 0x0606060606060606, 0x0202020202020202,
                                          0x0505050505050505, 0x0101010101010101, 0x0404040404040404, 0);
  return _mm512_shuffle_epi8(_mm512_set1_epi64(read<int64_t>(at)), spread);
}

inline int64_t padded_units(const stoker_matrix& m) { return blocks_of(m.cols, kQ8Columns) * 16 + 16; }

constexpr int64_t kFew = 10;        // tokens that the row kernel serves faster than a tile
constexpr int64_t kTogether = 5;    // tokens of one pass: their sums fill the registers
constexpr int64_t kSpread = 16;     // rows whose scales are spread at a time: 4 KB for 2048 columns
constexpr int64_t kAhead = 20;      // steps of four times 128 bytes: 25 GB/s for the 150 ns that memory takes are 4 KB, and jitter

// R rows times T tokens over 256 columns. Written breadth first: the scheduler holds few instructions that wait.
template <int R, int T, int Unit, bool E2m1, bool Zeroed, class Load>
inline void row_step(const uint8_t* const* w, const Q8Block* const* x, int64_t block, const float* scales, const uint8_t* lifts,
                     int64_t units, __m512i table, Load load_weights, F (&acc)[R][T]) {
  __m512i even[R][2], odd[R][2];
  F weight_scale[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512 a = _mm512_castsi512_ps(load_weights(w[r] + block * 128, 0));
    const __m512 b = _mm512_castsi512_ps(load_weights(w[r] + block * 128, 1));
    unpack<E2m1>(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)), table, even[r][0], odd[r][0]);
    unpack<E2m1>(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)), table, even[r][1], odd[r][1]);
  }
  if constexpr (Zeroed) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512i lift = lane_zeros(lifts + r * (units + kSpread) + block * 8);
      for (int h = 0; h < 2; ++h) {
        even[r][h] = _mm512_add_epi8(even[r][h], lift);
        odd[r][h] = _mm512_add_epi8(odd[r][h], lift);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) weight_scale[r] = lane_scales<Unit>(scales + r * units + block * (256 / Unit));
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const Q8Block& q = x[t][block];
    const __m512i even0 = _mm512_load_si512(q.even[0]), even1 = _mm512_load_si512(q.even[1]);
    const __m512i odd0 = _mm512_load_si512(q.odd[0]), odd1 = _mm512_load_si512(q.odd[1]), offset = _mm512_load_si512(q.offset);
    const F scale = _mm512_load_ps(q.scale);
    __m512i sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(offset, even[r][0], even0);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], odd[r][0], odd0);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], even[r][1], even1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], odd[r][1], odd1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][t] = fma(_mm512_cvtepi32_ps(sum[r]), mul(weight_scale[r], scale), acc[r][t]);
  }
}

// Rows `row` on; `valid` of the R are wanted, the others repeat the last. What these rows, or those after them, are needed for
// `kAhead` steps later is fetched, from `end` on at `next`.
template <int R, int T, int Unit, bool E2m1, bool Zeroed>
void q8_row(const Rows& job, int64_t row, int64_t valid, int64_t token, const float* scales, const uint8_t* lifts,
            const uint8_t* end, const uint8_t* next) {
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
  const int64_t steps = blocks_of(m.cols, kQ8Columns), rows_ahead = m.rows > 1 ? R * m.row_stride : 0;
  int64_t step = kAhead % steps, ahead = kAhead / steps * rows_ahead;
  const auto fetch = [&] {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const uint8_t* at = w[r] + ahead + step * 128;
      at = at < end ? at : next + (at - end);
      prefetch(at);
      prefetch(at + 64);
    }
    if (++step == steps) {
      step = 0;
      ahead += rows_ahead;
    }
  };
  for (int64_t block = 0; block < blocks; ++block) {
    fetch();
    row_step<R, T, Unit, E2m1, Zeroed>(w, x, block, scales, lifts, units, table,
                                       [](const uint8_t* p, int half) { return _mm512_loadu_si512(p + 64 * half); }, acc);
  }
  if (tail != 0) {  // columns beyond the last have activations of 0, and any finite scale will do
    fetch();
    const int64_t bytes = tail / 2;
    const __mmask64 some[2] = {bytes >= 64 ? ~uint64_t(0) : (uint64_t(1) << bytes) - 1,
                               bytes <= 64 ? 0 : (uint64_t(1) << (bytes - 64)) - 1};
    row_step<R, T, Unit, E2m1, Zeroed>(w, x, blocks, scales, lifts, units, table,
                                       [&](const uint8_t* p, int half) { return _mm512_maskz_loadu_epi8(some[half], p + 64 * half); },
                                       acc);
  }
  for (int t = 0; t < T; ++t) {
    static_assert(R == 4);
    const __m128 sums = sums_of(acc[0][t], acc[1][t], acc[2][t], acc[3][t]);
    _mm_mask_storeu_ps(job.result(token + t, row), __mmask8((1 << valid) - 1), sums);
  }
}

// Of the next rows: their lines lie apart from the codes and come too late by themselves.
inline void prefetch_scales(const stoker_matrix& m, int64_t row, int64_t rows) {
  const char* at = static_cast<const char*>(m.scales) + row / m.block_rows * m.scale_row_stride;
  const int64_t bytes = (rows < kSpread ? rows : kSpread) * m.scale_row_stride;
  for (int64_t offset = 0; offset < bytes && offset < 16 << 10; offset += 64) prefetch(at + offset);
}

template <int Unit, bool E2m1, bool Zeroed>
void q8_few(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  const int64_t units = m.cols / Unit;
  float* scales = reinterpret_cast<float*>(scratch);
  uint8_t* lifts = reinterpret_cast<uint8_t*>(scales + kSpread * units + 64);
  const uint8_t* const stop = row_of(m, end);
  const uint8_t* const next = job.next == nullptr ? stop : row_of(*job.next, job.next_row);
  prefetch_scales(m, begin, end - begin);
  for (int64_t first = begin; first < end; first += kSpread) {
    const int64_t last = end - first < kSpread ? end : first + kSpread;
    if (last < end) prefetch_scales(m, last, end - last);
    else if (job.next != nullptr) prefetch_scales(*job.next, job.next_row, job.next->rows - job.next_row);
    spread_rows(m, first, last - first, scales);
    memset(scales + (last - first) * units, 0, 16 * 4);  // what the last row's partial block reads beyond its end
    if constexpr (Zeroed)
      for (int64_t row = first; row < last; ++row) spread_zeros(m, row, lifts + (row - first) * (units + kSpread));
    for (int64_t row = first; row < last; row += 4) {
      const int64_t valid = last - row < 4 ? last - row : 4;
      const float* s = scales + (row - first) * units;
      const uint8_t* z = lifts + (row - first) * (units + kSpread);
      const int64_t passes = blocks_of(job.tokens, kTogether);
      for (int64_t pass = 0, token = 0; pass < passes; ++pass) {  // the first brings the rows, the next finds them near
        const int64_t count = blocks_of(job.tokens - token, passes - pass);
        switch (count) {
          case 1: q8_row<4, 1, Unit, E2m1, Zeroed>(job, row, valid, token, s, z, stop, next); break;
          case 2: q8_row<4, 2, Unit, E2m1, Zeroed>(job, row, valid, token, s, z, stop, next); break;
          case 3: q8_row<4, 3, Unit, E2m1, Zeroed>(job, row, valid, token, s, z, stop, next); break;
          case 4: q8_row<4, 4, Unit, E2m1, Zeroed>(job, row, valid, token, s, z, stop, next); break;
          default: q8_row<4, 5, Unit, E2m1, Zeroed>(job, row, valid, token, s, z, stop, next);
        }
        token += count;
      }
    }
  }
}

// --- several tokens ----------------------------------------------------------------------------------------------------

constexpr int64_t kLanes = 16;           // rows, one to a lane
constexpr int kGroups = 2;               // of them in a tile, which share the broadcast of each activation
constexpr int64_t kTile = kLanes * kGroups;
constexpr int64_t kBatch = 64;           // tokens whose sums and columns stay in the first-level cache
constexpr int64_t kTokenBlock8 = 128;    // tokens whose operands stay in the second-level cache while rows pass by

struct Tile {
  float* scales;   // [units][rows]
  uint8_t* zeros;  // [units][rows]
  float* sums;     // [tokens][rows]
  char* rows;      // scratch of one row at a time
};

// 32 columns of the tile's rows, given as 4 dwords of nibbles for each row, times all tokens: added to `sums`. Their two groups'
// activations are in lanes `lane` and lane + 1 of the block.
template <int Unit, bool E2m1, bool Zeroed>
inline void tile_step(const __m512i (*packed)[16], __m512i table, const float* scales, const uint8_t* zeros,
                      const Q8Block* const* x, int64_t block, int64_t lane, int quarter, int64_t tokens, float* sums) {
  __m512i even[kGroups][4], odd[kGroups][4];
  F scale0[kGroups], scale1[kGroups];
#pragma GCC unroll 2
  for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
    for (int d = 0; d < 4; ++d) unpack<E2m1>(packed[g][4 * quarter + d], table, even[g][d], odd[g][d]);
    if constexpr (Zeroed) {
      const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(zeros + g * kLanes)));
      const __m512i lift = _mm512_mullo_epi32(bytes, _mm512_set1_epi32(0x01010101));
#pragma GCC unroll 4
      for (int d = 0; d < 4; ++d) {
        even[g][d] = _mm512_add_epi8(even[g][d], lift);
        odd[g][d] = _mm512_add_epi8(odd[g][d], lift);
      }
    }
    scale0[g] = load(scales + g * kLanes);
    scale1[g] = Unit == 16 ? load(scales + kTile + g * kLanes) : scale0[g];
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const Q8Block& q = x[t][block];
    const auto dword = [](const int8_t* p) { return _mm512_set1_epi32(stoker::read<int32_t>(p)); };
    __m512i d0[kGroups], d1[kGroups];
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      d0[g] = _mm512_set1_epi32(q.offset[lane]);
      d1[g] = _mm512_set1_epi32(q.offset[lane + 1]);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int8_t *even_at = q.even[half] + 4 * lane, *odd_at = q.odd[half] + 4 * lane;
      const __m512i e0 = dword(even_at), e1 = dword(even_at + 4), o0 = dword(odd_at), o1 = dword(odd_at + 4);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        d0[g] = _mm512_dpbusd_epi32(d0[g], even[g][half], e0);
        d1[g] = _mm512_dpbusd_epi32(d1[g], even[g][2 + half], e1);
        d0[g] = _mm512_dpbusd_epi32(d0[g], odd[g][half], o0);
        d1[g] = _mm512_dpbusd_epi32(d1[g], odd[g][2 + half], o1);
      }
    }
    const F s0 = set1(q.scale[lane]), s1 = set1(q.scale[lane + 1]);
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      float* at = sums + t * kTile + g * kLanes;
      const F first = mul(_mm512_cvtepi32_ps(d0[g]), s0), f1 = _mm512_cvtepi32_ps(d1[g]);
      F total = _mm512_load_ps(at);
      if constexpr (Unit == 16) total = fma(mul(f1, s1), scale1[g], fma(first, scale0[g], total));
      else total = fma(fma(f1, s1, first), scale0[g], total);
      _mm512_store_ps(at, total);
    }
  }
}

template <int Unit, bool Zeroed>
void tile_scales(const stoker_matrix& m, int64_t row, int64_t last, const Tile& tile) {
  const int64_t units = blocks_of(m.cols, kQ8Columns) * (kQ8Columns / Unit);
  float* scales = reinterpret_cast<float*>(tile.rows);
  const int64_t stride = padded_units(m);
  for (int g = 0; g < kGroups; ++g) {
    const int64_t first = row + g * kLanes;
    for (int64_t r = 0; r < kLanes; ++r) spread_scales(m, first + r < last ? first + r : last - 1, scales + r * stride);
    for (int64_t unit = 0; unit < units; unit += 16) {
      __m512i in[16], out[16];
      for (int r = 0; r < 16; ++r) in[r] = _mm512_loadu_si512(scales + r * stride + unit);
      transpose(in, out);
      for (int u = 0; u < 16 && unit + u < units; ++u)
        _mm512_store_si512(tile.scales + (unit + u) * kTile + g * kLanes, out[u]);
    }
  }
  if constexpr (Zeroed) {
    uint8_t* lifts = reinterpret_cast<uint8_t*>(tile.rows);
    for (int64_t r = 0; r < kTile; ++r) {
      spread_zeros(m, row + r < last ? row + r : last - 1, lifts);
      for (int64_t unit = 0; unit < units; ++unit) tile.zeros[unit * kTile + r] = unit < m.cols / 32 ? lifts[unit] : 0;
    }
  }
}

// The tile's rows for tokens `first` to `end`. Those of the next tile come into the second-level cache meanwhile.
template <int Unit, bool E2m1, bool Zeroed>
void q8_tile(const Rows& job, int64_t row, int64_t last, int64_t first, int64_t end, const Tile& tile) {
  const stoker_matrix& m = *job.matrix;
  const __m512i table = code_table();
  tile_scales<Unit, Zeroed>(m, row, last, tile);
  const uint8_t* w[kTile];
  for (int64_t r = 0; r < kTile; ++r) w[r] = row_of(m, row + r < last ? row + r : last - 1);
  const int64_t halves = blocks_of(m.cols, 128), ahead = kTile * m.row_stride;
  for (int64_t token = first; token < end; token += kBatch) {
    const int64_t tokens = end - token < kBatch ? end - token : kBatch;
    const Q8Block* x[kBatch];
    for (int64_t t = 0; t < tokens; ++t) x[t] = reinterpret_cast<const Q8Block*>(job.operand(token + t));
    memset(tile.sums, 0, size_t(tokens * kTile) * 4);
    for (int64_t half = 0; half < halves; ++half) {  // of a block
      const int64_t left = m.cols / 2 - half * 64;
      const __mmask64 valid = left >= 64 ? ~uint64_t(0) : (uint64_t(1) << left) - 1;
      __m512i packed[kGroups][16];
      for (int g = 0; g < kGroups; ++g) {
        __m512i in[16];
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) in[r] = _mm512_maskz_loadu_epi8(valid, w[g * kLanes + r] + half * 64);
        transpose(in, packed[g]);
      }
      if (token == 0) {
#pragma GCC unroll 4
        for (int r = 0; r < kTile; ++r) _mm_prefetch(reinterpret_cast<const char*>(w[r] + ahead + half * 64), _MM_HINT_T1);
      }
#pragma GCC unroll 4
      for (int quarter = 0; quarter < 4; ++quarter) {
        const int64_t unit = half * 4 + quarter;  // of 32 columns
        tile_step<Unit, E2m1, Zeroed>(packed, table, tile.scales + unit * (32 / Unit) * kTile, tile.zeros + unit * kTile, x, half / 2,
                                      quarter * 4 + half % 2 * 2, quarter, tokens, tile.sums);
      }
    }
    for (int64_t t = 0; t < tokens; ++t)
      for (int g = 0; g < kGroups; ++g) {
        const int64_t at = row + g * kLanes;
        const F sums = _mm512_load_ps(tile.sums + t * kTile + g * kLanes);
        if (at + kLanes <= last) store(job.result(token + t, at), sums);
        else if (at < last) store_part(job.result(token + t, at), sums, last - at);
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
  if (job.tokens <= kFew) return q8_few<Unit, E2m1, Zeroed>(job, begin, end, scratch);
  Tile tile;
  tile.scales = reinterpret_cast<float*>(scratch);
  tile.sums = tile.scales + units * kTile;
  tile.rows = reinterpret_cast<char*>(tile.sums + kBatch * kTile);
  tile.zeros = reinterpret_cast<uint8_t*>(tile.rows + kTile * units * 4);
  memset(tile.rows, 0, size_t(kTile * units * 4));
  for (int64_t token = 0; token < job.tokens; token += kTokenBlock8) {
    const int64_t last = job.tokens - token < kTokenBlock8 ? job.tokens : token + kTokenBlock8;
    for (int64_t row = begin; row < end; row += kTile) q8_tile<Unit, E2m1, Zeroed>(job, row, end, token, last, tile);
  }
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
