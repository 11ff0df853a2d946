// The scales and zero points of one row of 4-bit weights, spread to one value per unit of 16 or 32 columns, so that the
// kernels need to know neither how a format stores them nor its group size.
#pragma once

#include "scalar.h"

namespace stoker {
namespace {

inline int64_t scale_unit(const stoker_matrix& m) { return m.block_cols == 16 ? 16 : 32; }

// Factor between the codes' products and the weights' own: E2M1 codes are twice their value.
inline float code_scale(const stoker_matrix& m) { return m.format == STOKER_E2M1 ? 0.5f * m.global_scale : m.global_scale; }

// Writes a whole number of vectors: `out` needs room for `count` rounded up to W.
template <F (*Load)(const uint8_t*), int Bytes>
inline void spread_vector(const uint8_t* from, int64_t count, float factor, float* out) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(out + i, mul(Load(from + i * Bytes), set1(factor)));
  if (i == count) return;
  uint8_t part[W * Bytes] = {};
  memcpy(part, from + i * Bytes, size_t(count - i) * Bytes);
  store(out + i, mul(Load(part), set1(factor)));
}

inline F load_f32_bytes(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }

inline void spread_packed(const stoker_matrix& m, const uint8_t* from, int64_t count, float* out) {
  const float factor = code_scale(m);
  switch (m.scale_type) {
    case STOKER_SCALE_E8M0: return spread_vector<load_e8m0, 1>(from, count, factor, out);
    case STOKER_SCALE_E4M3: return spread_vector<load_e4m3, 1>(from, count, factor * kE4m3Lift, out);
    case STOKER_SCALE_BF16: return spread_vector<load_bf16, 2>(from, count, factor, out);
    case STOKER_SCALE_F16: return spread_vector<load_f16, 2>(from, count, factor, out);
    default: return spread_vector<load_f32_bytes, 4>(from, count, factor, out);
  }
}

inline int64_t bytes_of_scale(int type) {
  return type == STOKER_SCALE_F32 ? 4 : type == STOKER_SCALE_BF16 || type == STOKER_SCALE_F16 ? 2 : 1;
}

// `groups` scales that were decoded to the end of their room, each repeated: a write never passes what is still to be read.
inline void repeat_scales(const float* decoded, int64_t groups, int64_t repeat, float* out) {
  int64_t group = 0;
  if (repeat == 4)
    for (; group + W / 4 <= groups; group += W / 4, out += W) store(out, four_times(decoded + group));
  for (; group < groups; ++group) {
    const float scale = decoded[group];
    int64_t i = 0;
    for (const float four[4] = {scale, scale, scale, scale}; i + 4 <= repeat; i += 4, out += 4) memcpy(out, four, 16);
    for (; i < repeat; ++i) *out++ = scale;
  }
}

// Scales of `count` rows times everything constant, cols / unit of each, one row after the other; writes up to W - 1 more.
// Where rows lie so in the checkpoint too, that is one sweep.
inline void spread_rows(const stoker_matrix& m, int64_t row, int64_t count, float* out) {
  const int64_t groups = m.cols / m.block_cols, repeat = m.block_cols / scale_unit(m), size = bytes_of_scale(m.scale_type);
  if (groups > 1 && m.scale_col_stride != size) {
    for (int64_t r = row; r < row + count; ++r)
      for (int64_t group = 0; group < groups; ++group) {
        const float scale = scale_value(m.scale_type, scale_at(m, r, group)) * code_scale(m);
        for (int64_t i = 0; i < repeat; ++i) *out++ = scale;
      }
    return;
  }
  const int64_t together = m.scale_row_stride == groups * size ? count : 1;  // rows
  for (int64_t r = 0; r < count; r += together, out += together * groups * repeat) {
    float* decoded = out + together * groups * (repeat - 1);
    spread_packed(m, reinterpret_cast<const uint8_t*>(scale_at(m, row + r, 0)), together * groups, decoded);
    if (repeat > 1) repeat_scales(decoded, together * groups, repeat, out);
  }
}

inline void spread_scales(const stoker_matrix& m, int64_t row, float* out) { spread_rows(m, row, 1, out); }

// What to add to the stored codes of `row` to make them `kInt4ZeroedBias` above the weight, a byte per 32 columns; writes up to
// 4 W - 1 more.
inline void spread_zeros(const stoker_matrix& m, int64_t row, uint8_t* out) {
  const int64_t groups = m.cols / m.block_cols, repeat = m.block_cols / 32, shift = row % 8 * 4;
  const uint8_t* words = static_cast<const uint8_t*>(m.zeros) + row / 8 * m.zero_stride;
  for (int64_t group = 0; group < groups; group += W) {
    const int64_t count = groups - group < W ? groups - group : W;
    const I stored = count == W ? load_int(words + group * 4) : load_int_part(words + group * 4, count * 4);
    const I lifts = lifts_of(stored, int(shift), kInt4ZeroedBias - m.zero_offset);  // four times in each lane
    if (repeat == 1) {
      store_bytes(out + group, lifts);
      continue;
    }
    uint32_t four[W];
    store_int(four, lifts);
    if (repeat == 4) {
      memcpy(out + group * 4, four, sizeof four);
      continue;
    }
    uint8_t* to = out + group * repeat;
    for (int64_t g = 0; g < count; ++g) {
      int64_t i = 0;
      for (; i + 4 <= repeat; i += 4, to += 4) memcpy(to, four + g, 4);
      for (; i < repeat; ++i) *to++ = uint8_t(four[g]);
    }
  }
}

}  // namespace
}  // namespace stoker
