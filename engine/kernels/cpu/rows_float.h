// Rows of F32, F16, BF16 and FP8 weights times fp32 activations: dot products along the row, several rows and tokens at once
// so that each load serves many multiplications. The order of additions within a dot product is the same in every grouping.
#pragma once

#include "scalar.h"

namespace stoker {
namespace {

// How one step along a row is loaded and multiplied.
struct StepF32 {
  using X = float;
  using Weight = F;
  static constexpr int kCols = W, kBytes = 4;
  static Weight load_weight(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static F load_x(const X* p) { return load(p); }
  static F mac(F acc, Weight w, F x) { return fma(w, x, acc); }
};
struct StepF16 : StepF32 {
  static constexpr int kBytes = 2;
  static Weight load_weight(const uint8_t* p) { return load_f16(p); }
};
struct StepBf16 : StepF32 {
  static constexpr int kBytes = 2;
  static Weight load_weight(const uint8_t* p) { return load_bf16(p); }
};
struct StepE4m3 : StepF32 {
  static constexpr int kBytes = 1;
  static Weight load_weight(const uint8_t* p) { return load_e4m3(p); }
};

constexpr int64_t kRowsAhead = 10 << 10;  // bytes: 25 GB/s for the 150 ns that memory takes are 4 KB, and jitter

// What is read `kRowsAhead` later than R rows' bytes at an offset: up to `bend` at near[r] + offset, from there on at far[r] + offset.
template <int R>
struct RowsAhead {
  const uint8_t *near[R], *far[R];
  int64_t bend;

  RowsAhead(const Rows& job, int64_t row, int64_t end) {
    const stoker_matrix& m = *job.matrix;
    const int64_t along = kRowsAhead / R, groups = along / m.row_stride, rest = along % m.row_stride;
    const auto at = [&](int64_t r) {
      return r < end ? row_of(m, r) : job.next != nullptr ? row_of(*job.next, job.next_row + r - end) : row_of(m, row);
    };
    bend = m.row_stride - rest;
    for (int r = 0; r < R; ++r) {
      near[r] = at(row + groups * R + r) + rest;
      far[r] = at(row + (groups + 1) * R + r) - bend;
    }
  }

  void fetch(int64_t offset) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) prefetch((offset < bend ? near[r] : far[r]) + offset);
  }
};

// acc[r][t] += row r times token t over columns begin to end. `ahead` may be null.
template <class S, int R, int T>
inline void dot(const uint8_t* const* w, const typename S::X* const* x, const RowsAhead<R>* ahead, int64_t begin, int64_t end,
                F (&acc)[R][T]) {
  const auto step = [&](const uint8_t* const* row, const typename S::X* const* token, int64_t col) {
    typename S::Weight weight[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) weight[r] = S::load_weight(row[r] + col * S::kBytes);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const auto xs = S::load_x(token[t] + col);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][t] = S::mac(acc[r][t], weight[r], xs);
    }
  };
  int64_t col = begin;
  for (; col + S::kCols <= end; col += S::kCols) {
    if (ahead != nullptr) ahead->fetch(col * S::kBytes);
    step(w, x, col);
  }
  if (col == end) return;
  uint8_t part[R][S::kCols * S::kBytes] = {};  // the tail, padded with zeros
  typename S::X part_x[T][S::kCols] = {};
  const uint8_t* rows[R];
  const typename S::X* tokens[T];
  for (int r = 0; r < R; ++r) {
    memcpy(part[r], w[r] + col * S::kBytes, size_t(end - col) * S::kBytes);
    rows[r] = part[r];
  }
  for (int t = 0; t < T; ++t) {
    memcpy(part_x[t], x[t] + col, size_t(end - col) * sizeof(typename S::X));
    tokens[t] = part_x[t];
  }
  step(rows, tokens, 0);
}

// A lane adds at most this many products before its sum is set aside: keeps the fp32 path within 1e-6.
constexpr int64_t kRun = 256;

inline float block_scale(const stoker_matrix& m, int64_t row, int64_t col) {
  return scale_value(m.scale_type, scale_at(m, row, col / m.block_cols)) * (m.global_scale * kE4m3Lift);
}

template <class S, int R, int T>
void dot_rows(const Rows& job, const uint8_t* const* w, const RowsAhead<R>* ahead, int64_t row, int64_t token) {
  const stoker_matrix& m = *job.matrix;
  const bool scaled = m.scale_type != STOKER_SCALE_NONE;
  const bool alike = scaled && row / m.block_rows == (row + R - 1) / m.block_rows;  // all rows in one block
  const typename S::X* x[T];
  for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const typename S::X*>(job.operand(token + t));
  F total[R][T];
  for (auto& of_row : total)
    for (F& lane : of_row) lane = zero();
  for (int64_t begin = 0, end; begin < m.cols; begin = end) {
    end = begin + kRun * S::kCols;
    if (scaled) {
      const int64_t block_end = (begin / m.block_cols + 1) * m.block_cols;
      if (block_end < end) end = block_end;
    }
    if (m.cols < end) end = m.cols;
    F acc[R][T];
    for (auto& of_row : acc)
      for (F& lane : of_row) lane = zero();
    dot<S, R, T>(w, x, ahead, begin, end, acc);
    float scale = scaled ? block_scale(m, row, begin) : 1.0f;
    for (int r = 0; r < R; ++r) {
      if (r > 0 && scaled && !alike) scale = block_scale(m, row + r, begin);
      for (int t = 0; t < T; ++t) total[r][t] = fma(acc[r][t], set1(scale), total[r][t]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) *job.result(token + t, row + r) = sum(total[r][t]);
}

// The first tokens bring the rows, those after them find them near.
template <class S, int R, int Most>
void dot_tokens(const Rows& job, const uint8_t* const* w, const RowsAhead<R>* ahead, int64_t row, int64_t begin, int64_t end) {
  for (; begin + Most <= end; begin += Most, ahead = nullptr) dot_rows<S, R, Most>(job, w, ahead, row, begin);
  if constexpr (Most > 1) {
    if (begin < end) dot_tokens<S, R, Most - 1>(job, w, ahead, row, begin, end);
  }
}

constexpr int64_t kTokenBlock = 48;  // whose operands stay in the second-level cache while rows pass by

template <class S, int R, int T>
void dot_matrix(const Rows& job, int64_t begin, int64_t end) {
  const stoker_matrix& m = *job.matrix;
  for (int64_t token = 0; token < job.tokens; token += kTokenBlock) {
    const int64_t last = job.tokens - token < kTokenBlock ? job.tokens : token + kTokenBlock;
    int64_t row = begin;
    for (; row + R <= end; row += R) {
      const uint8_t* w[R];
      for (int r = 0; r < R; ++r) w[r] = row_of(m, row + r);
      const RowsAhead<R> ahead(job, row, end);
      dot_tokens<S, R, T>(job, w, token == 0 ? &ahead : nullptr, row, token, last);
    }
    for (; row < end; ++row) {
      const uint8_t* w = row_of(m, row);
      dot_tokens<S, 1, T>(job, &w, nullptr, row, token, last);
    }
  }
}

#ifndef STOKER_HAS_STEP_E4M3_ONE
using StepE4m3One = StepE4m3;  // for a single token
#endif

template <class S>
void float_rows(const Rows& job, int64_t begin, int64_t end) {
  if (job.tokens == 1) dot_matrix<S, 1, 1>(job, begin, end);
  else dot_matrix<S, kTileRows, kTileTokens>(job, begin, end);
}

void float_rows(const Rows& job, int64_t begin, int64_t end) {
  switch (job.matrix->format) {
    case STOKER_F32: return float_rows<StepF32>(job, begin, end);
    case STOKER_F16: return float_rows<StepF16>(job, begin, end);
    case STOKER_BF16: return float_rows<StepBf16>(job, begin, end);
    default: break;
  }
  const bool whole = job.matrix->block_cols % StepE4m3One::kCols == 0 || job.matrix->block_cols >= job.matrix->cols;
  if (job.tokens == 1 && whole) return dot_matrix<StepE4m3One, 4, 1>(job, begin, end);
  float_rows<StepE4m3>(job, begin, end);
}

// Any format, by way of one row of floats: what a tier without a kernel of its own falls back to.
void decoded_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  stoker_matrix plain = *job.matrix;
  plain.format = STOKER_F32;
  plain.scale_type = STOKER_SCALE_NONE;
  plain.row_stride = 0;
  Rows one = job;
  one.matrix = &plain;
  float* row_values = reinterpret_cast<float*>(scratch);
  const uint8_t* w = reinterpret_cast<const uint8_t*>(scratch);
  for (int64_t row = begin; row < end; ++row) {
    decode_row(*job.matrix, row, row_values);
    dot_tokens<StepF32, 1, kTileTokens>(one, &w, nullptr, row, 0, job.tokens);
  }
}

}  // namespace
}  // namespace stoker
