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

constexpr int64_t kUnpacked = 16;  // rows, whose bf16 values stay in the second-level cache for all tokens

int64_t bf16_scratch_bytes(const stoker_matrix& m) { return kUnpacked * operand_bytes(Operand::kBf16, m.cols); }

void bf16_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  if (job.matrix->format == STOKER_BF16) return dot_matrix<StepDot, kTileRows, kTileTokens>(job, begin, end);
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
