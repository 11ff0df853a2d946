// The functions between an expert's matrices. Arguments of min and max stand so that a NaN in x survives.
#pragma once

#include <initializer_list>

#include "scalar.h"

namespace stoker {
namespace {

// e^x to 1e-7 within float's range, saturated beyond: x = n ln 2 + r, with a Taylor polynomial for r in +-0.35.
inline F exponential(F x) {
  x = vmax(set1(-87.3f), vmin(set1(87.9f), x));
  const F n = nearest(mul(x, set1(1.44269504f)));
  F r = fma(n, set1(-0.693145752f), x);  // ln 2 in two parts, the first exact in products with n
  r = fma(n, set1(-1.42860677e-6f), r);
  F p = set1(1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, r, set1(c));
  return times_pow2(p, n);
}

inline F times_sigmoid(F x, F y) { return div(x, add(set1(1.0f), exponential(sub(zero(), y)))); }  // x sigmoid(y)

// Sources: Shazeer 2020 for the gates; gpt-oss and DeepSeek-V4 model files for the clamps; Primer (So et al. 2021) for relu2.
inline F activated(int kind, float alpha, float limit, F gate, F up) {
  const F most = set1(limit), least = set1(-limit);
  switch (kind) {
    case STOKER_GPT_OSS:
      gate = vmin(most, gate);
      up = vmax(least, vmin(most, up));
      return mul(add(up, set1(1.0f)), times_sigmoid(gate, mul(gate, set1(alpha))));
    case STOKER_GELU_TANH_GATE: {  // (1 + tanh u) / 2 = sigmoid(2 u)
      const F cubic = fma(mul(mul(gate, gate), gate), set1(0.044715f), gate);
      return mul(times_sigmoid(gate, mul(cubic, set1(1.59576912f))), up);  // 2 sqrt(2 / pi)
    }
    case STOKER_RELU2: {
      const F positive = vmax(zero(), up);
      return mul(positive, positive);
    }
    case STOKER_SILU_GATE_CLAMPED:
      gate = vmin(most, gate);
      up = vmax(least, vmin(most, up));
      return mul(times_sigmoid(gate, gate), up);
    default: return mul(times_sigmoid(gate, gate), up);
  }
}

void activate(int kind, float alpha, float limit, const float* gate, const float* up, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(out + i, activated(kind, alpha, limit, load(gate + i), load(up + i)));
  if (i < count)
    store_part(out + i, activated(kind, alpha, limit, load_part(gate + i, count - i), load_part(up + i, count - i)), count - i);
}

// Routing order, whatever order the outputs were computed in.
void weighted_sum(const float* outputs, int64_t stride, const float* weights, int64_t ranks, int64_t count, float* y) {
  for (int64_t i = 0; i < count; i += W) {
    const int64_t width = count - i < W ? count - i : W;
    F total = zero();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const float* from = outputs + rank * stride + i;
      total = fma(width == W ? load(from) : load_part(from, width), set1(weights[rank]), total);
    }
    if (width == W) store(y + i, total);
    else store_part(y + i, total, width);
  }
}

}  // namespace
}  // namespace stoker
