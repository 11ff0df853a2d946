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

// Scales of `row` times everything constant, cols / unit of them; writes up to W - 1 more.
inline void spread_scales(const stoker_matrix& m, int64_t row, float* out) {
  const int64_t groups = m.cols / m.block_cols, repeat = m.block_cols / scale_unit(m), size = bytes_of_scale(m.scale_type);
  if (groups > 1 && m.scale_col_stride != size) {
    for (int64_t group = 0; group < groups; ++group) {
      const float scale = scale_value(m.scale_type, scale_at(m, row, group)) * code_scale(m);
      for (int64_t i = 0; i < repeat; ++i) *out++ = scale;
    }
    return;
  }
  // Decoded to the end of their room, then repeated from its start: a write never passes what is still to be read.
  const float* decoded = out + groups * (repeat - 1);
  spread_packed(m, reinterpret_cast<const uint8_t*>(scale_at(m, row, 0)), groups, out + groups * (repeat - 1));
  if (repeat == 1) return;
  for (int64_t group = 0; group < groups; ++group) {
    const float scale = decoded[group];
    int64_t i = 0;
    for (const float four[4] = {scale, scale, scale, scale}; i + 4 <= repeat; i += 4, out += 4) memcpy(out, four, 16);
    for (; i < repeat; ++i) *out++ = scale;
  }
}

// The same of `count` rows, one after the other without padding. Where they lie so in the checkpoint, that is one sweep.
inline void spread_rows(const stoker_matrix& m, int64_t row, int64_t count, float* out) {
  const int64_t units = m.cols / scale_unit(m), size = bytes_of_scale(m.scale_type);
  const bool in_sequence = m.block_cols == scale_unit(m) && m.scale_col_stride == size && m.scale_row_stride == units * size;
  if (in_sequence) {
    spread_packed(m, reinterpret_cast<const uint8_t*>(scale_at(m, row, 0)), units * count, out);
    return;
  }
  for (int64_t r = 0; r < count; ++r) spread_scales(m, row + r, out + r * units);
}

// What to add to the stored codes of `row` to make them `kInt4ZeroedBias` above the weight, per 32 columns.
inline void spread_zeros(const stoker_matrix& m, int64_t row, uint8_t* out) {
  const int64_t groups = m.cols / m.block_cols, repeat = m.block_cols / 32, shift = row % 8 * 4;
  const char* words = static_cast<const char*>(m.zeros) + row / 8 * m.zero_stride;
  for (int64_t group = 0; group < groups; ++group) {
    const uint8_t lift = uint8_t(kInt4ZeroedBias - m.zero_offset - int(read<uint32_t>(words + group * 4) >> shift & 15));
    int64_t i = 0;
    for (const uint32_t four = 0x01010101u * lift; i + 4 <= repeat; i += 4, out += 4) memcpy(out, &four, 4);
    for (; i < repeat; ++i) *out++ = lift;
  }
}

}  // namespace
}  // namespace stoker
