// 16-bit and FP8 weights times bf16 activations with vdpbf16ps: twice the rate of fp32 for a relative error of 2e-3.
#pragma once

#include "rows_float.h"

namespace stoker {
namespace {

struct StepDot {
  using X = uint16_t;
  using Weight = __m512bh;
  static constexpr int kCols = 32, kBytes = 2;
  static Weight load_weight(const uint8_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static Weight load_x(const X* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static F mac(F acc, Weight w, Weight x) { return _mm512_dpbf16_ps(acc, w, x); }
};

// FP8 weights as they are: a few tokens read them too seldom to unpack them first.
struct StepE4m3Dot {
  using X = uint16_t;
  struct Weight {
    __m512bh part[2];
  };
  static constexpr int kCols = 64, kBytes = 1;
  static Weight load_weight(const uint8_t* p) {
    __m512i first, second;
    e4m3_to_bf16(_mm512_loadu_si512(p), first, second);
    return {{(__m512bh)first, (__m512bh)second}};
  }
  static Weight load_x(const X* p) {  // in the same order
    const __m512i low = _mm512_loadu_si512(p), high = _mm512_loadu_si512(p + 32);
    return {{(__m512bh)_mm512_shuffle_i32x4(low, high, 0x88), (__m512bh)_mm512_shuffle_i32x4(low, high, 0xdd)}};
  }
  static F mac(F acc, const Weight& w, const Weight& x) {
    return _mm512_dpbf16_ps(_mm512_dpbf16_ps(acc, w.part[0], x.part[0]), w.part[1], x.part[1]);
  }
};

inline void store_bf16(F low, F high, char* out) { _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low)); }

void prepare_bf16(const float* x, int64_t begin, int64_t end, char* out) {
  int64_t col = begin;
  for (; col + 32 <= end; col += 32) store_bf16(load(x + col), load(x + col + 16), out + 2 * col);
  for (; col < end; ++col) {
    const uint16_t bits = to_bf16(x[col]);
    memcpy(out + 2 * col, &bits, 2);
  }
}

// A row of F16 or FP8 as bf16, scales applied, padded with zeros to whole steps.
template <F (*Load)(const uint8_t*), int Bytes>
void unpack_row(const stoker_matrix& m, int64_t row, char* out) {
  const uint8_t* from = row_of(m, row);
  const bool scaled = m.scale_type != STOKER_SCALE_NONE;
  for (int64_t begin = 0, end; begin < m.cols; begin = end) {
    end = m.cols;
    F scale = set1(1.0f);
    if (scaled) {
      const int64_t block = begin / m.block_cols;
      end = (block + 1) * m.block_cols < m.cols ? (block + 1) * m.block_cols : m.cols;
      scale = set1(scale_value(m.scale_type, scale_at(m, row, block)) * (m.global_scale * kE4m3Lift));
    }
    int64_t col = begin;
    for (; col + 32 <= end; col += 32)
      store_bf16(mul(Load(from + col * Bytes), scale), mul(Load(from + (col + 16) * Bytes), scale), out + 2 * col);
    if (col == end) continue;
    uint8_t part[32 * Bytes] = {};
    memcpy(part, from + col * Bytes, size_t(end - col) * Bytes);
    char values[64];
    store_bf16(mul(Load(part), scale), mul(Load(part + 16 * Bytes), scale), values);
    memcpy(out + 2 * col, values, size_t(end - col) * 2);
  }
}

constexpr int64_t kFewE4m3 = 8;  // tokens for which FP8 is used as it is

// FP8 with a scale for each 32 columns of a row, MXFP8, in whole steps.
template <int R, int T>
void scaled_rows(const Rows& job, const uint8_t* const* w, const float* scales, int64_t row, int64_t token) {
  const stoker_matrix& m = *job.matrix;
  const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);  // of a step's columns, by lane
  const uint16_t* x[T];
  for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const uint16_t*>(job.operand(token + t));
  F total[R][T];
  for (auto& of_row : total)
    for (F& lane : of_row) lane = zero();
  for (int64_t col = 0; col < m.cols; col += 64) {
    StepE4m3Dot::Weight weight[R];
    F scale[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if constexpr (T == 1) prefetch(w[r] + col + R * m.row_stride);
      weight[r] = StepE4m3Dot::load_weight(w[r] + col);
      const __m512d both = _mm512_set1_pd(read<double>(scales + (r * m.cols + col) / 32));
      scale[r] = _mm512_permutexvar_ps(halves, _mm512_castpd_ps(both));
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const StepE4m3Dot::Weight xs = StepE4m3Dot::load_x(x[t] + col);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) total[r][t] = fma(StepE4m3Dot::mac(zero(), weight[r], xs), scale[r], total[r][t]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) *job.result(token + t, row + r) = sum(total[r][t]) * kE4m3Lift;
}

template <int R>
void scaled_rows(const Rows& job, int64_t row, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  const int64_t units = m.cols / 32;
  float* scales = reinterpret_cast<float*>(scratch);
  const uint8_t* w[R];
  for (int r = 0; r < R; ++r) {
    w[r] = row_of(m, row + r);
    spread_packed(m, reinterpret_cast<const uint8_t*>(scale_at(m, row + r, 0)), units, scales + r * units);
  }
  int64_t token = 0;
  for (; token + 4 <= job.tokens; token += 4) scaled_rows<R, 4>(job, w, scales, row, token);
  for (; token < job.tokens; ++token) scaled_rows<R, 1>(job, w, scales, row, token);
}

bool is_mxfp8(const stoker_matrix& m) {
  return m.block_cols == 32 && m.cols % 64 == 0 && m.scale_col_stride == bytes_of_scale(m.scale_type);
}

void e4m3_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  if (!is_mxfp8(*job.matrix)) return dot_matrix<StepE4m3Dot, 4, 4>(job, begin, end);
  int64_t row = begin;
  for (; row + 4 <= end; row += 4) scaled_rows<4>(job, row, scratch);
  for (; row < end; ++row) scaled_rows<1>(job, row, scratch);
}

constexpr int64_t kUnpacked = 16;  // rows, whose bf16 values stay in the second-level cache for all tokens

// Of unpacked rows, or of four rows' scales.
int64_t bf16_scratch_bytes(const stoker_matrix& m) { return kUnpacked * operand_bytes(Operand::kBf16, m.cols); }

void bf16_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  if (job.matrix->format == STOKER_BF16) return dot_matrix<StepDot, kTileRows, kTileTokens>(job, begin, end);
  const bool whole = job.matrix->block_cols % 64 == 0 || job.matrix->block_cols >= job.matrix->cols || is_mxfp8(*job.matrix);
  if (job.matrix->format == STOKER_E4M3 && job.tokens <= kFewE4m3 && whole) return e4m3_rows(job, begin, end, scratch);
  stoker_matrix plain = *job.matrix;
  plain.format = STOKER_BF16;
  plain.scale_type = STOKER_SCALE_NONE;
  plain.row_stride = operand_bytes(Operand::kBf16, plain.cols);
  Rows some = job;
  some.matrix = &plain;
  for (int64_t row = begin; row < end; row += kUnpacked) {
    const int64_t last = row + kUnpacked < end ? row + kUnpacked : end;
    for (int64_t r = row; r < last; ++r) {
      char* out = scratch + (r - row) * plain.row_stride;
      if (job.matrix->format == STOKER_F16) unpack_row<load_f16, 2>(*job.matrix, r, out);
      else unpack_row<load_e4m3, 1>(*job.matrix, r, out);
    }
    plain.data = scratch - row * plain.row_stride;  // so that row r of `plain` is row r of the matrix
    dot_matrix<StepDot, kTileRows, kTileTokens>(some, row, last);
  }
}

constexpr bool kHasBf16 = true;

}  // namespace
}  // namespace stoker
