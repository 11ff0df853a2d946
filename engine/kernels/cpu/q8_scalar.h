// Quantising activations one value at a time, for the tiers whose vectors have no better way.
#pragma once

#include "scalar.h"

namespace stoker {
namespace {

// Up to sixteen columns: int8 with one scale. A NaN or infinity makes the scale NaN, and so the whole product.
inline void quantise_group(const float* x, int64_t count, int bias, Q8Block& block, int64_t group) {
  uint32_t highest_bits = 0;  // of the magnitudes, ordered as the floats are, NaN above all
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = to_bits(x[i]) & 0x7fffffff;
    highest_bits = bits > highest_bits ? bits : highest_bits;
  }
  const bool finite = highest_bits < 0x7f800000;
  const float most = from_bits(highest_bits);
  const float inverse = finite && most > 1e-30f ? 127.0f / most : 0.0f;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to nearest even
  const int64_t lane = q8_lane(group);
  int sum = 0;
  for (int64_t i = 0; i < 16; ++i) {
    const float scaled = finite && i < count ? x[i] * inverse : 0.0f;
    const int code = int(int32_t(to_bits(scaled + magic) - to_bits(magic)));
    (i % 2 == 0 ? block.even : block.odd)[i / 8][4 * lane + i % 8 / 2] = int8_t(code);
    sum += code;
  }
  block.scale[lane] = finite ? most / 127.0f : from_bits(0x7fc00000);
  block.offset[lane] = -bias * sum;
}

}  // namespace
}  // namespace stoker
