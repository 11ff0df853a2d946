// 4-bit weights stored by columns, GPTQ's and AWQ's, times int8 activations: up to 128 columns of a tile of rows are laid out
// as the integer dot products want them, whole vectors of rows, and multiplied by all tokens.
#pragma once

#include "scales4.h"

namespace stoker {
namespace {

constexpr int kWordVectors = 8;  // of rows in a tile
constexpr int64_t kWordRows = kWordVectors * W, kVectorBytes = W * 4, kParityBytes = kWordVectors * kVectorBytes;
constexpr int64_t kWordColumns = 128;  // of a tile at most, all of one group
constexpr int64_t kWordBatch = 64;     // tokens that share what was laid out
constexpr int64_t kWordAhead = 4 << 10;  // bytes between what is fetched and what is laid out

struct WordTile {
  uint8_t codes[kWordColumns / 8][2 * kParityBytes];  // of eight columns the even ones, then the odd; four to a row
  float sums[kWordTokens][kWordRows];                 // in the layout's order
  float dots[kWordRows], scales[kWordRows + W], zeros[kWordRows];
  float totals[kWordBatch];  // of the activations
};

// A word holds eight columns of a row: a line of words is eight columns of all rows.
struct Gptq {
  static constexpr int kLines = 1;  // for eight columns
  static int64_t bytes_of(int64_t rows) { return rows * 4; }
  static int vectors(int64_t rows) { return int(blocks_of(rows, W)); }

  // Calls use(vector, parity, codes) for eight columns from one line on.
  template <bool Whole, class Use>
  static void each(const uint8_t* from, int64_t, int64_t rows, Use use) {
#pragma GCC unroll 8
    for (int v = 0; v < kWordVectors; ++v) {
      if (!Whole && v * W >= rows) break;
      const uint8_t* at = from + v * kVectorBytes;
      const I words = Whole || rows - v * W >= W ? load_int(at) : load_int_part(at, (rows - v * W) * 4);
      use(v, 0, low_nibbles(words));
      use(v, 1, high_nibbles(words));
    }
  }

  static I zero_shifts() { return eight_lanes(0, 4, 8, 12, 16, 20, 24, 28); }
  static void sort(const float* sums, float* out) { memcpy(out, sums, kWordRows * 4); }
};

// A word holds eight rows of a column, so that a vector of words is a column of the tile. Four columns are woven together byte
// by byte; their vectors then hold rows 0 4 1 5 of each word in the low nibbles and 2 6 3 7 in the high ones.
struct Awq {
  static constexpr int kLines = 8;
  static int64_t bytes_of(int64_t rows) { return rows / 2; }
  static int vectors(int64_t) { return kWordVectors; }

  template <bool Whole, class Use>
  static void each(const uint8_t* from, int64_t stride, int64_t rows, Use use) {
#pragma GCC unroll 2
    for (int parity = 0; parity < 2; ++parity) {
      I column[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const uint8_t* at = from + (2 * i + parity) * stride;
        column[i] = Whole ? load_int(at) : load_int_part(at, rows / 2);
      }
      const I low01 = weave8_low(column[0], column[1]), high01 = weave8_high(column[0], column[1]);
      const I low23 = weave8_low(column[2], column[3]), high23 = weave8_high(column[2], column[3]);
      const I words[4] = {weave16_low(low01, low23), weave16_high(low01, low23), weave16_low(high01, high23),
                          weave16_high(high01, high23)};
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        use(2 * q, parity, low_nibbles(words[q]));
        use(2 * q + 1, parity, high_nibbles(words[q]));
      }
    }
  }

  static I zero_shifts() { return eight_lanes(0, 16, 4, 20, 8, 24, 12, 28); }
  static void sort(const float* sums, float* out) {  // lane l of 128 bits, of word 4 l + q
    for (int q = 0; q < 4; ++q) {
      const F low = load(sums + 2 * q * W), high = load(sums + (2 * q + 1) * W);
      store_lanes(pick_even(low, high), out + 8 * q, 32);
      store_lanes(pick_odd(low, high), out + 8 * q + 4, 32);
    }
  }
};

// What is fetched ahead: lines of a piece one after the other, whatever the order of use, since memory likes neighbours.
struct Ahead {
  const uint8_t* line;
  int64_t stride, width, at = 0;  // bytes of a line, and where in it
  void fetch() {  // as much as eight columns of a tile
    for (int i = 0; i < kWordVectors * W * 4 / 64; ++i) {
      prefetch(line + at);
      at += 64;
      if (at >= width) at = 0, line += stride;
    }
  }
};

// Sums of one token over some columns, straight from the words.
template <class L, bool Whole>
void multiply_alone(const uint8_t* from, int64_t stride, int64_t rows, const Q8Block* x, int64_t first, int64_t columns,
                    Ahead* ahead, WordTile& tile) {
  F acc[kWordVectors];
  for (F& lane : acc) lane = zero();
  for (int64_t col = first; col < first + columns; col += kQ8Group) {
    const Q8Block& q = x[col / kQ8Columns];
    const int64_t lane = q8_lane(col % kQ8Columns / kQ8Group);
    I sums[kWordVectors];
    for (I& sum : sums) sum = no_sum();
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, from += L::kLines * stride) {
      if (ahead != nullptr) ahead->fetch();
      const I even = spread4(q.even[half] + 4 * lane), odd = spread4(q.odd[half] + 4 * lane);
      L::template each<Whole>(from, stride, rows,
                              [&](int v, int parity, I codes) { sums[v] = dot4(sums[v], codes, parity == 0 ? even : odd); });
    }
    for (int v = 0; v < kWordVectors; ++v) acc[v] = fma(to_float(sum_of_dots(sums[v])), set1(q.scale[lane]), acc[v]);
  }
  for (int v = 0; v < kWordVectors; ++v) store(tile.sums[0] + v * W, acc[v]);
}

// Lays some columns out.
template <class L, bool Whole>
void lay_words(const uint8_t* from, int64_t stride, int64_t rows, int64_t columns, Ahead* ahead, WordTile& tile) {
  for (int64_t octet = 0; octet < columns / 8; ++octet, from += L::kLines * stride) {
    if (ahead != nullptr) ahead->fetch();
    uint8_t* out = tile.codes[octet];
    L::template each<Whole>(from, stride, rows, [&](int v, int parity, I codes) {
      store_int(out + parity * kParityBytes + v * kVectorBytes, codes);
    });
  }
}

// sums[t] of V vectors from `vector` on and T tokens, over the columns that were laid out.
template <int V, int T>
void multiply_words(const Q8Block* const* x, int64_t first, int64_t columns, int vector, WordTile& tile) {
  F acc[T][V];
  for (auto& of_token : acc)
    for (F& lane : of_token) lane = zero();
  for (int64_t col = first; col < first + columns; col += kQ8Group) {
    const uint8_t* codes = tile.codes[(col - first) / 8] + vector * kVectorBytes;
    const int64_t block = col / kQ8Columns, lane = q8_lane(col % kQ8Columns / kQ8Group);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const uint8_t* at = codes + v * kVectorBytes;
      const I part[4] = {load_int(at), load_int(at + kParityBytes), load_int(at + 2 * kParityBytes), load_int(at + 3 * kParityBytes)};
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const Q8Block& q = x[t][block];
        I sum = dot4(no_sum(), part[0], spread4(q.even[0] + 4 * lane));
        sum = dot4(sum, part[1], spread4(q.odd[0] + 4 * lane));
        sum = dot4(sum, part[2], spread4(q.even[1] + 4 * lane));
        sum = dot4(sum, part[3], spread4(q.odd[1] + 4 * lane));
        acc[t][v] = fma(to_float(sum_of_dots(sum)), set1(q.scale[lane]), acc[t][v]);
      }
    }
  }
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < V; ++v) store(tile.sums[t] + (vector + v) * W, acc[t][v]);
}

template <int T>
void multiply_words(const Q8Block* const* x, int64_t first, int64_t columns, int vectors, WordTile& tile) {
  for (int v = 0; v < vectors; v += kWordTogether) multiply_words<kWordTogether, T>(x, first, columns, v, tile);
}

// Scales and zero points of a tile's rows in one group.
template <class L>
void spread_group(const stoker_matrix& m, int64_t row, int64_t rows, int64_t group, WordTile& tile) {
  spread_packed(m, reinterpret_cast<const uint8_t*>(scale_at(m, row, group)), rows, tile.scales);
  const uint8_t* words = static_cast<const uint8_t*>(m.zeros) + group * m.zero_stride + row / 2;
  for (int64_t r = 0; r < rows; r += W) {
    F zeros = set1(float(kInt4Bias));
    if (m.zeros != nullptr) {
      uint8_t part[W / 2] = {};
      memcpy(part, words + r / 2, size_t(rows - r < W ? rows - r : W) / 2);
      zeros = add(to_float(nibbles_at(part, L::zero_shifts())), set1(float(m.zero_offset)));
    }
    store(tile.zeros + r, zeros);
  }
}

// The products of one token, columns that were laid out, added to its result.
template <class L>
void add_words(const Rows& job, int64_t token, int64_t row, int64_t rows, bool is_first, const float* sums, float total,
               WordTile& tile) {
  L::sort(sums, tile.dots);
  float* y = job.result(token, row);
  for (int64_t r = 0; r < rows; r += W) {
    const int64_t count = rows - r < W ? rows - r : W;
    const F centred = sub(load(tile.dots + r), mul(load(tile.zeros + r), set1(total)));
    const F before = is_first ? zero() : count == W ? load(y + r) : load_part(y + r, count);
    const F after = fma(centred, load(tile.scales + r), before);
    if (count == W) store(y + r, after);
    else store_part(y + r, after, count);
  }
}

// Some columns of a tile times tokens `token` to `last`.
template <class L, bool Whole>
void word_tile(const Rows& job, int64_t token, int64_t last, int64_t row, int64_t rows, int64_t first, int64_t columns,
               Ahead* ahead, WordTile& tile) {
  const stoker_matrix& m = *job.matrix;
  const uint8_t* from = static_cast<const uint8_t*>(m.data) + first * L::kLines / 8 * m.row_stride + L::bytes_of(row);
  spread_group<L>(m, row, rows, first / m.block_cols, tile);
  const Q8Block* x[kWordTokens];
  if (last - token == 1) {
    x[0] = reinterpret_cast<const Q8Block*>(job.operand(token));
    multiply_alone<L, Whole>(from, m.row_stride, rows, x[0], first, columns, ahead, tile);
    return add_words<L>(job, token, row, rows, first == 0, tile.sums[0], tile.totals[0], tile);
  }
  lay_words<L, Whole>(from, m.row_stride, rows, columns, ahead, tile);
  const float* totals = tile.totals - token;
  const int vectors = L::vectors(rows);
  while (token < last) {
    const int64_t left = last - token;
    const int count = left >= kWordTokens ? kWordTokens : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (int t = 0; t < count; ++t) x[t] = reinterpret_cast<const Q8Block*>(job.operand(token + t));
    switch (count) {
      case 1: multiply_words<1>(x, first, columns, vectors, tile); break;
      case 2: multiply_words<2>(x, first, columns, vectors, tile); break;
      case 4: multiply_words<4>(x, first, columns, vectors, tile); break;
      default: multiply_words<kWordTokens>(x, first, columns, vectors, tile);
    }
    for (int t = 0; t < count; ++t) add_words<L>(job, token + t, row, rows, first == 0, tile.sums[t], totals[token + t], tile);
    token += count;
  }
}

// Sum of a token's activations over some columns.
inline float total_of(const Q8Block* x, int64_t first, int64_t columns, int bias) {
  float total = 0;
  for (int64_t col = first; col < first + columns; col += kQ8Group) {
    const Q8Block& q = x[col / kQ8Columns];
    const int64_t lane = q8_lane(col % kQ8Columns / kQ8Group);
    total += float(q.offset[lane] / -bias) * q.scale[lane];
  }
  return total;
}

template <class L>
void word_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  const stoker_matrix& m = *job.matrix;
  WordTile& tile = *reinterpret_cast<WordTile*>(scratch);
  const uint8_t* data = static_cast<const uint8_t*>(m.data);
  const int64_t lines = m.cols * L::kLines / 8, here = L::bytes_of(end - begin), bias = code_bias(m);
  const uint8_t* next = data + L::bytes_of(end);
  if (job.next != nullptr) next = static_cast<const uint8_t*>(job.next->data) + L::bytes_of(job.next_row);
  for (int64_t token = 0; token < job.tokens; token += kWordBatch) {
    const int64_t last = job.tokens - token < kWordBatch ? job.tokens : token + kWordBatch;
    for (int64_t first = 0, columns; first < m.cols; first += columns) {
      const int64_t left = m.block_cols - first % m.block_cols;
      columns = left < kWordColumns ? left : kWordColumns;
      for (int64_t t = token; t < last; ++t)
        tile.totals[t - token] = total_of(reinterpret_cast<const Q8Block*>(job.operand(t)), first, columns, int(bias));
      const int64_t line = (first + columns) * L::kLines / 8 + kWordAhead / here;
      const uint8_t* upcoming = line < lines ? data + line * m.row_stride + L::bytes_of(begin) : next + (line - lines) * m.row_stride;
      Ahead fetched{upcoming, m.row_stride, here};
      Ahead* const ahead = token == 0 ? &fetched : nullptr;  // afterwards they are near
      for (int64_t row = begin; row < end; row += kWordRows) {
        const int64_t rows = end - row < kWordRows ? end - row : kWordRows;
        if (rows == kWordRows) word_tile<L, true>(job, token, last, row, rows, first, columns, ahead, tile);
        else word_tile<L, false>(job, token, last, row, rows, first, columns, ahead, tile);
      }
    }
  }
}

constexpr int64_t kWordScratch = sizeof(WordTile);

void word_rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  if (job.matrix->format == STOKER_INT4_GPTQ) return word_rows<Gptq>(job, begin, end, scratch);
  word_rows<Awq>(job, begin, end, scratch);
}

}  // namespace
}  // namespace stoker
