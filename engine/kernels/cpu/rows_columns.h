// Plain weights stored by columns, [in, out]: vectors run along rows, and each column adds to the sums of a tile of them.
#pragma once

#include <type_traits>

#include "rows_float.h"

namespace stoker {
namespace {

// Successive rows are successive elements.
template <class S>  // a step of `dot`
struct Adjacent {
  explicit Adjacent(const stoker_matrix&) {}
  int64_t row_bytes() const { return S::kBytes; }
  F load(const uint8_t* p) const { return S::load_weight(p); }
};

struct Scattered {  // anything
  explicit Scattered(const stoker_matrix& m) : format(m.format), bytes(m.element_step * (m.format == STOKER_F32 ? 4 : 2)) {}
  const int format;
  const int64_t bytes;
  int64_t row_bytes() const { return bytes; }
  F load_part(const uint8_t* p, int64_t count) const {
    float values[W] = {};
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* at = p + i * bytes;
      values[i] = format == STOKER_F32 ? read<float>(at) : format == STOKER_F16 ? from_f16(read<uint16_t>(at)) : from_bf16(read<uint16_t>(at));
    }
    return stoker::load(values);
  }
  F load(const uint8_t* p) const { return load_part(p, W); }
};

constexpr int64_t kColumnsAhead = 48;  // of a tile's few lines each, farther apart than the prefetchers of a processor look

// V vectors of rows times T tokens. `width` counts the rows of the last vector.
template <class L, int V, int T>
void column_tile(const Rows& job, const L& loader, int64_t row, int64_t token, int64_t width) {
  const stoker_matrix& m = *job.matrix;
  const uint8_t* data = static_cast<const uint8_t*>(m.data) + row * loader.row_bytes();
  const int64_t vector_bytes = W * loader.row_bytes();
  const float* x[T];
  for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const float*>(job.operand(token + t));
  F total[V][T];
  for (auto& of_rows : total)
    for (F& lane : of_rows) lane = zero();
  for (int64_t begin = 0, end; begin < m.cols; begin = end) {
    end = begin + kRun < m.cols ? begin + kRun : m.cols;
    F acc[V][T];
    for (auto& of_rows : acc)
      for (F& lane : of_rows) lane = zero();
    for (int64_t col = begin; col < end; ++col) {
      const uint8_t* at = data + col * m.row_stride;
      if (T == 1 && !std::is_same_v<L, Scattered> && col + kColumnsAhead < m.cols)
        for (int64_t line = 0; line < V * vector_bytes; line += 64) prefetch(at + kColumnsAhead * m.row_stride + line);
      F weight[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        if constexpr (std::is_same_v<L, Scattered>) weight[v] = loader.load_part(at + v * vector_bytes, v == V - 1 ? width : W);
        else weight[v] = loader.load(at + v * vector_bytes);
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const F xs = set1(x[t][col]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[v][t] = fma(weight[v], xs, acc[v][t]);
      }
    }
    for (int v = 0; v < V; ++v)
      for (int t = 0; t < T; ++t) total[v][t] = add(total[v][t], acc[v][t]);
  }
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < V; ++v) {
      float* y = job.result(token + t, row + v * W);
      if (v == V - 1 && width < W) store_part(y, total[v][t], width);
      else store(y, total[v][t]);
    }
}

template <class L, int V, int Most>
void column_tokens(const Rows& job, const L& loader, int64_t row, int64_t begin, int64_t end, int64_t width) {
  for (; begin + Most <= end; begin += Most) column_tile<L, V, Most>(job, loader, row, begin, width);
  if constexpr (Most > 1) {
    if (begin < end) column_tokens<L, V, Most - 1>(job, loader, row, begin, end, width);
  }
}

constexpr int64_t kTileBatch = 4;  // tokens from which a tile is laid out closely first: its columns are read once, not by all

// Two vectors of rows, all columns of them, as floats: the same sums in the same order.
template <class L>
void close_tile(const Rows& job, const L& loader, int64_t row, float* close) {
  const stoker_matrix& m = *job.matrix;
  const uint8_t* data = static_cast<const uint8_t*>(m.data) + row * loader.row_bytes();
  for (int64_t col = 0; col < m.cols; ++col) {
    const uint8_t* at = data + col * m.row_stride;
    for (int v = 0; v < 2; ++v) store(close + (2 * col + v) * W, loader.load(at + v * W * loader.row_bytes()));
  }
  stoker_matrix tile{};
  tile.format = STOKER_F32;
  tile.rows = 2 * W;
  tile.cols = m.cols;
  tile.data = close;
  tile.row_stride = 2 * W * 4;
  tile.element_step = 1;
  Rows part = job;
  part.matrix = &tile;
  part.y_first = job.y_first - row;
  column_tokens<Adjacent<StepF32>, 2, 6>(part, Adjacent<StepF32>(tile), 0, 0, job.tokens, W);
}

int64_t column_scratch_bytes(const stoker_matrix& m) { return m.cols * 2 * W * 4; }

template <class L>
void column_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  const L loader(m);
  constexpr int kWide = 64 / W > 8 ? 8 : 64 / W;  // a token alone: many sums in flight hide the distance of the columns
  int64_t row = begin;
  if (job.tokens == 1)
    for (; row + kWide * W <= end; row += kWide * W) column_tokens<L, kWide, 1>(job, loader, row, 0, 1, W);
  if (job.tokens >= kTileBatch)
    for (; row + 2 * W <= end; row += 2 * W)
      close_tile(job, loader, row, reinterpret_cast<float*>(scratch));
  for (; row + 2 * W <= end; row += 2 * W) column_tokens<L, 2, 4>(job, loader, row, 0, job.tokens, W);
  const Scattered any(m);
  for (; row < end; row += W) column_tokens<Scattered, 1, 4>(job, any, row, 0, job.tokens, end - row < W ? end - row : W);
}

void column_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  if (m.element_step != 1) return column_rows<Scattered>(job, begin, end, scratch);
  switch (m.format) {
    case STOKER_F32: return column_rows<Adjacent<StepF32>>(job, begin, end, scratch);
    case STOKER_F16: return column_rows<Adjacent<StepF16>>(job, begin, end, scratch);
    default: return column_rows<Adjacent<StepBf16>>(job, begin, end, scratch);
  }
}

}  // namespace
}  // namespace stoker
