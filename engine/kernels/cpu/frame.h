// What stands between a layer's matrices: norms, rotary positions, the residual sum.
#pragma once

#include <cmath>

#include "scalar.h"

namespace stoker {
namespace {

// x to unit root mean square, times weight. `out` may be x. Source: Zhang and Sennrich 2019.
void rms_norm(const float* x, const float* weight, int64_t count, float eps, float* out) {
  F squares = zero();
  int64_t i = 0;
  for (; i + W <= count; i += W) squares = fma(load(x + i), load(x + i), squares);
  if (i < count) squares = fma(load_part(x + i, count - i), load_part(x + i, count - i), squares);
  const F scale = set1(1.0f / std::sqrt(sum(squares) / float(count) + eps));
  for (i = 0; i + W <= count; i += W) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (i < count)
    store_part(out + i, mul(mul(load_part(x + i, count - i), scale), load_part(weight + i, count - i)), count - i);
}

// Values i and i + half turned by angle i, in place. Source: Su et al. 2021.
void rotate(float* x, const float* cosine, const float* sine, int64_t half) {
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    const F low = load(x + i), high = load(x + half + i), c = load(cosine + i), s = load(sine + i);
    store(x + i, sub(mul(low, c), mul(high, s)));
    store(x + half + i, fma(high, c, mul(low, s)));
  }
  for (; i < half; ++i) {
    const float low = x[i], high = x[half + i];
    x[i] = low * cosine[i] - high * sine[i];
    x[half + i] = high * cosine[i] + low * sine[i];
  }
}

void add_to(float* x, const float* y, int64_t count) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(x + i, add(load(x + i), load(y + i)));
  for (; i < count; ++i) x[i] += y[i];
}

}  // namespace
}  // namespace stoker
