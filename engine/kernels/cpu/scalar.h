// The number formats one value at a time. Everything is in an anonymous namespace: each tier compiles its own copy.
#pragma once

#include <cstdint>
#include <cstring>

#include "tier.h"

namespace stoker {
namespace {

template <class T>
inline T read(const void* at) {  // from any address
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

inline float from_bits(uint32_t bits) { return read<float>(&bits); }
inline uint32_t to_bits(float value) { return read<uint32_t>(&value); }

inline float from_bf16(uint16_t bits) { return from_bits(uint32_t(bits) << 16); }

inline uint16_t to_bf16(float value) {  // to nearest, ties to even; NaN stays NaN
  const uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -magnitude : magnitude;
}

// The vector loads of E4M3 read it as a half float, whose exponent has a bias of 15 and not 7: 2^8 too small, exact for
// subnormals too. The two NaN codes read as 480; a published checkpoint has none.
constexpr float kE4m3Lift = 256.0f;

inline float from_e4m3(uint8_t bits) { return from_f16(uint16_t((bits & 0x80) << 8 | (bits & 0x7f) << 7)) * kE4m3Lift; }

inline float from_e8m0(uint8_t bits) {  // 2^(bits - 127)
  if (bits == 255) return from_bits(0x7fc00000);
  return from_bits(bits == 0 ? 0x00400000u : uint32_t(bits) << 23);
}

inline float scale_value(int type, const char* at) {
  switch (type) {
    case STOKER_SCALE_F32: return read<float>(at);
    case STOKER_SCALE_BF16: return from_bf16(read<uint16_t>(at));
    case STOKER_SCALE_F16: return from_f16(read<uint16_t>(at));
    case STOKER_SCALE_E8M0: return from_e8m0(read<uint8_t>(at));
    case STOKER_SCALE_E4M3: return from_e4m3(read<uint8_t>(at));
    default: return 1.0f;
  }
}

inline const char* scale_at(const stoker_matrix& m, int64_t row, int64_t block) {
  return static_cast<const char*>(m.scales) + row / m.block_rows * m.scale_row_stride + block * m.scale_col_stride;
}

inline const uint8_t* row_of(const stoker_matrix& m, int64_t row) {
  return static_cast<const uint8_t*>(m.data) + row * m.row_stride;
}

// Codes of 4-bit weights as unsigned bytes, `kBias` above twice the E2M1 value, so that they may enter unsigned dot products.
constexpr int kE2m1Bias = 12;
alignas(16) constexpr uint8_t kE2m1Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr int kInt4Bias = 8;         // of the symmetric nibbles as stored
constexpr int kInt4ZeroedBias = 16;  // with a zero point z each code is stored + 16 - z, at least 1 and at most 31

inline int code_bias(const stoker_matrix& m) {
  return m.format == STOKER_E2M1 ? kE2m1Bias : m.zeros != nullptr ? kInt4ZeroedBias : kInt4Bias;
}

constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // where AWQ keeps row r % 8 of its word

// The zero point of a 4-bit integer weight's group.
inline int zero_of(const stoker_matrix& m, int64_t row, int64_t group) {
  if (m.zeros == nullptr) return kInt4Bias;
  const char* zeros = static_cast<const char*>(m.zeros);
  const bool by_columns = m.format != STOKER_INT4;
  const char* word = by_columns ? zeros + group * m.zero_stride + row / 8 * 4 : zeros + row / 8 * m.zero_stride + group * 4;
  const int nibble = m.format == STOKER_INT4_AWQ ? kAwqNibble[row % 8] : int(row % 8);
  return int(read<uint32_t>(word) >> nibble * 4 & 15) + m.zero_offset;
}

inline int nibble_of(const stoker_matrix& m, int64_t row, int64_t col) {
  const char* data = static_cast<const char*>(m.data);
  switch (m.format) {
    case STOKER_INT4_GPTQ: return int(read<uint32_t>(data + col / 8 * m.row_stride + row * 4) >> col % 8 * 4 & 15);
    case STOKER_INT4_AWQ: return int(read<uint32_t>(data + col * m.row_stride + row / 8 * 4) >> kAwqNibble[row % 8] * 4 & 15);
    default: return row_of(m, row)[col / 2] >> col % 2 * 4 & 15;
  }
}

// One row of any format as floats: the slow way that is right for all.
inline void decode_row(const stoker_matrix& m, int64_t row, float* out) {  // but for those stored by columns
  const uint8_t* data = row_of(m, row);
  if (m.format == STOKER_F32) {
    memcpy(out, data, size_t(m.cols) * 4);
    return;
  }
  if (m.format == STOKER_F16 || m.format == STOKER_BF16) {
    for (int64_t col = 0; col < m.cols; ++col) {
      const uint16_t bits = read<uint16_t>(data + col * 2);
      out[col] = m.format == STOKER_F16 ? from_f16(bits) : from_bf16(bits);
    }
    return;
  }
  for (int64_t first = 0, block = 0; first < m.cols; first += m.block_cols, ++block) {
    const int64_t last = first + m.block_cols < m.cols ? first + m.block_cols : m.cols;
    const float scale = scale_value(m.scale_type, scale_at(m, row, block)) * m.global_scale;
    if (m.format == STOKER_E4M3) {
      for (int64_t col = first; col < last; ++col) out[col] = from_e4m3(data[col]) * scale;
    } else if (m.format == STOKER_E2M1) {
      for (int64_t col = first; col < last; ++col)
        out[col] = float(int(kE2m1Codes[nibble_of(m, row, col)]) - kE2m1Bias) * (0.5f * scale);
    } else {
      const int zero = zero_of(m, row, block);
      for (int64_t col = first; col < last; ++col) out[col] = float(nibble_of(m, row, col) - zero) * scale;
    }
  }
}

}  // namespace
}  // namespace stoker
