// One token through the gated delta rule: a short convolution, the memory of each value head, the norm with its gate.
#pragma once

#include <cmath>

#include "activate.h"
#include "frame.h"

namespace stoker {
namespace {

// Channels begin to end of silu(the weighted sum of each one's last `width` inputs); the inputs that stay are kept.
void short_conv(const stoker_delta_call& c, int64_t begin, int64_t end, float* out) {
  const int64_t channels = 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim, past = c.width - 1;
  for (int64_t at = begin; at < end; at += W) {
    const int64_t count = end - at < W ? end - at : W;
    F total = zero();
    for (int64_t tap = 0; tap < c.width; ++tap) {
      const float* from = tap < past ? c.past + tap * channels + at : c.mixed + at;
      const F x = load_part(from, count);
      total = fma(x, load_part(c.taps + tap * channels + at, count), total);
      if (tap > 0) store_part(c.following + (tap - 1) * channels + at, x, count);
    }
    store_part(out + at - begin, times_sigmoid(total, total), count);
  }
}

float dot(const float* x, const float* y, int64_t count) {
  F total = zero();
  int64_t i = 0;
  for (; i + W <= count; i += W) total = fma(load(x + i), load(y + i), total);
  if (i < count) total = fma(load_part(x + i, count - i), load_part(y + i, count - i), total);
  return sum(total);
}

void scale(float* x, float by, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= by;
}

// What keys and queries read from a memory [Dk, Dv]: columns at to at + N * W.
template <int N>
void read_memory(const float* memory, const float* k, const float* q, int64_t rows, int64_t stride, float* by_key, float* by_query) {
  F keyed[N], asked[N];
  for (int n = 0; n < N; ++n) keyed[n] = asked[n] = zero();
  for (int64_t row = 0; row < rows; ++row) {
    const F key = set1(k[row]), query = set1(q[row]);
    for (int n = 0; n < N; ++n) {
      const F held = load(memory + row * stride + n * W);
      keyed[n] = fma(held, key, keyed[n]);
      asked[n] = fma(held, query, asked[n]);
    }
  }
  for (int n = 0; n < N; ++n) {
    store(by_key + n * W, keyed[n]);
    store(by_query + n * W, asked[n]);
  }
}

// S = a S + k d with d = r (v - a S k), of which q reads a (S q) + (q k) d. Source: Yang et al. 2024, Gated Delta Networks.
void delta_head(const stoker_delta_call& c, int64_t head, const float* q, const float* k, const float* v, float* scratch) {
  const int64_t rows = c.key_dim, width = c.value_dim;
  const float pace = c.decay[head] + c.bias[head];
  const float softplus = pace > 20.0f ? pace : std::log1p(std::exp(pace));
  const float a = std::exp(c.speed[head] * softplus), rate = 1.0f / (1.0f + std::exp(-c.rate[head])), own = dot(q, k, rows);
  const float* memory = c.memory + head * rows * width;
  float* kept = c.kept + head * rows * width;
  float *change = scratch, *read = scratch + width;
  int64_t at = 0;
  for (; at + 4 * W <= width; at += 4 * W) read_memory<4>(memory + at, k, q, rows, width, change + at, read + at);
  for (; at + W <= width; at += W) read_memory<1>(memory + at, k, q, rows, width, change + at, read + at);
  for (; at < width; ++at) {
    change[at] = read[at] = 0.0f;
    for (int64_t row = 0; row < rows; ++row) {
      change[at] += memory[row * width + at] * k[row];
      read[at] += memory[row * width + at] * q[row];
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    change[i] = rate * (v[i] - a * change[i]);
    read[i] = a * read[i] + own * change[i];
  }
  const F fallen = set1(a);
  for (int64_t row = 0; row < rows; ++row) {
    const float *from = memory + row * width, key = k[row];
    float* to = kept + row * width;
    int64_t i = 0;
    for (; i + W <= width; i += W) store(to + i, fma(set1(key), load(change + i), mul(fallen, load(from + i))));
    for (; i < width; ++i) to[i] = key * change[i] + a * from[i];
  }
  float* y = c.y + head * width;
  rms_norm(read, c.norm, width, c.eps, read);
  activate(STOKER_SILU_GATE, 0.0f, 0.0f, c.gate + head * width, read, width, y);
}

int64_t delta_bytes(const stoker_delta_call& c) {
  return (2 * c.key_dim + (c.value_heads / c.key_heads + 2) * c.value_dim) * 4 + 64;
}

// A key head and the value heads that share it.
void delta(const stoker_delta_call& c, int64_t key_head, char* scratch) {
  const int64_t keys = c.key_heads * c.key_dim, shared_by = c.value_heads / c.key_heads;
  float* q = reinterpret_cast<float*>(scratch);
  float *k = q + c.key_dim, *v = k + c.key_dim, *rest = v + shared_by * c.value_dim;
  short_conv(c, key_head * c.key_dim, (key_head + 1) * c.key_dim, q);
  short_conv(c, keys + key_head * c.key_dim, keys + (key_head + 1) * c.key_dim, k);
  const int64_t first = 2 * keys + key_head * shared_by * c.value_dim;
  short_conv(c, first, first + shared_by * c.value_dim, v);
  scale(q, 1.0f / std::sqrt((dot(q, q, c.key_dim) + 1e-6f) * float(c.key_dim)), c.key_dim);
  scale(k, 1.0f / std::sqrt(dot(k, k, c.key_dim) + 1e-6f), c.key_dim);
  for (int64_t i = 0; i < shared_by; ++i) delta_head(c, key_head * shared_by + i, q, k, v + i * c.value_dim, rest);
}

}  // namespace
}  // namespace stoker
