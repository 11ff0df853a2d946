// Attention of a few queries over one key and value head, with a running softmax (Milakov and Gimelshein 2018).
#pragma once

#include "activate.h"

namespace stoker {
namespace {

constexpr int64_t kKeys = 64;  // positions whose logits are made before the softmax moves on

struct KeysF32 {
  static constexpr int kBytes = 4;
  static F load_at(const char* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct KeysBf16 {
  static constexpr int kBytes = 2;
  static F load_at(const char* p) { return load_bf16(reinterpret_cast<const uint8_t*>(p)); }
};

// One query of one head in progress: the highest logit, the sum of exponentials and the mixed values, relative to it.
struct Running {
  float* mixed;
  float most, total;
  int64_t begin, end;  // positions it sees
  const float* query;
};

// logits[q][k] of R queries and the keys from `key` on; `count` at most kKeys.
template <class K, int R>
void logits_of(const stoker_attention_call& c, Running* const* queries, const char* keys, int64_t count, float (*out)[kKeys]) {
  const int64_t dim = c.head_dim, whole = dim / W * W, stride = c.key_token_stride * K::kBytes;
  for (int64_t k = 0; k < count; ++k, keys += stride) {
    F acc[R];
    for (F& lane : acc) lane = zero();
    for (int64_t d = 0; d < whole; d += W) {
      const F key = K::load_at(keys + d * K::kBytes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r] = fma(key, load(queries[r]->query + d), acc[r]);
    }
    float tail[R] = {};
    for (int64_t d = whole; d < dim; ++d) {
      const float key = K::kBytes == 4 ? stoker::read<float>(keys + d * 4) : from_bf16(stoker::read<uint16_t>(keys + d * 2));
      for (int r = 0; r < R; ++r) tail[r] += key * queries[r]->query[d];
    }
    for (int r = 0; r < R; ++r) out[r][k] = (sum(acc[r]) + tail[r]) * c.scale;
  }
}

inline void softcap(float* logits, int64_t count, float cap) {  // cap * tanh(logit / cap)
  for (int64_t k = 0; k < count; k += W) {
    const F e = exponential(mul(load(logits + k), set1(2.0f / cap)));
    store(logits + k, mul(set1(cap), sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))))));
  }
}

// Turns logits into weights relative to the new highest logit and scales what was mixed before.
inline void fold(const stoker_attention_call& c, Running& q, float* logits, int64_t key, int64_t count) {
  if (c.softcap > 0) softcap(logits, kKeys, c.softcap);
  const int64_t from = q.begin > key ? q.begin - key : 0, to = q.end < key + count ? q.end - key : count;
  for (int64_t k = 0; k < kKeys; ++k)
    if (k < from || k >= to) logits[k] = -__builtin_inff();
  F highest_lanes = load(logits);
  for (int64_t k = W; k < kKeys; k += W) highest_lanes = vmax(highest_lanes, load(logits + k));
  const float most = highest(highest_lanes);
  if (most > q.most) {
    const float shrink = q.total == 0.0f ? 0.0f : sum(exponential(set1(q.most - most))) / W;
    q.total *= shrink;
    for (int64_t d = 0; d < c.value_dim; ++d) q.mixed[d] *= shrink;
    q.most = most;
  }
  F total = zero();
  for (int64_t k = 0; k < kKeys; k += W) {
    F weight = exponential(sub(load(logits + k), set1(q.most)));
    store(logits + k, weight);
  }
  for (int64_t k = 0; k < kKeys; ++k)
    if (k < from || k >= to) logits[k] = 0.0f;
  for (int64_t k = 0; k < kKeys; k += W) total = add(total, load(logits + k));
  q.total += sum(total);
}

template <class K, int R>
void mix(const stoker_attention_call& c, Running* const* queries, const char* values, int64_t count, const float (*weights)[kKeys]) {
  const int64_t dim = c.value_dim, whole = dim / W * W, stride = c.value_token_stride * K::kBytes;
  for (int64_t d = 0; d < whole; d += W) {
    F acc[R];
    for (int r = 0; r < R; ++r) acc[r] = load(queries[r]->mixed + d);
    const char* at = values + d * K::kBytes;
    for (int64_t k = 0; k < count; ++k, at += stride) {
      const F value = K::load_at(at);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r] = fma(value, set1(weights[r][k]), acc[r]);
    }
    for (int r = 0; r < R; ++r) store(queries[r]->mixed + d, acc[r]);
  }
  for (int64_t d = whole; d < dim; ++d)
    for (int64_t k = 0; k < count; ++k) {
      const char* at = values + k * stride + d * K::kBytes;
      const float value = K::kBytes == 4 ? stoker::read<float>(at) : from_bf16(stoker::read<uint16_t>(at));
      for (int r = 0; r < R; ++r) queries[r]->mixed[d] += value * weights[r][k];
    }
}

template <class K, int R>
void attend_group(const stoker_attention_call& c, Running* const* queries, const char* keys, const char* values, int64_t key,
                  int64_t count, float (*logits)[kKeys]) {
  for (int r = 0; r < R; ++r)
    for (int64_t k = count; k < kKeys; ++k) logits[r][k] = 0.0f;
  logits_of<K, R>(c, queries, keys, count, logits);
  for (int r = 0; r < R; ++r) fold(c, *queries[r], logits[r], key, count);
  mix<K, R>(c, queries, values, count, logits);
}

template <class K>
void attend_keys(const stoker_attention_call& c, int64_t kv_head, Running* queries, int64_t num_queries, int64_t begin, int64_t end) {
  alignas(64) float logits[4][kKeys];
  const char* keys = static_cast<const char*>(c.keys) + kv_head * c.key_head_stride * K::kBytes;
  const char* values = static_cast<const char*>(c.values) + kv_head * c.value_head_stride * K::kBytes;
  for (int64_t key = begin; key < end; key += kKeys) {
    const int64_t count = end - key < kKeys ? end - key : kKeys;
    const char* k_at = keys + key * c.key_token_stride * K::kBytes;
    const char* v_at = values + key * c.value_token_stride * K::kBytes;
    Running* seeing[4];
    int held = 0;
    for (int64_t q = 0; q < num_queries; ++q) {
      if (queries[q].begin < key + count && queries[q].end > key) seeing[held++] = &queries[q];
      if (held == 4) {
        attend_group<K, 4>(c, seeing, k_at, v_at, key, count, logits);
        held = 0;
      }
    }
    for (int i = 0; i < held; ++i) attend_group<K, 1>(c, seeing + i, k_at, v_at, key, count, logits);
  }
}

int64_t attend_bytes(const stoker_attention_call& c) {
  const int64_t queries = c.heads / c.kv_heads * kAttendTokens;
  return queries * (c.value_dim * 4 + int64_t(sizeof(Running))) + 64;
}

// All heads that share `kv_head`, tokens first to last: each block of keys is read once for all of them.
void attend(const stoker_attention_call& c, int64_t kv_head, int64_t first_token, int64_t last_token, char* scratch) {
  const int64_t group = c.heads / c.kv_heads, num_queries = group * (last_token - first_token);
  Running* queries = reinterpret_cast<Running*>(scratch);
  float* mixed = reinterpret_cast<float*>(scratch + num_queries * int64_t(sizeof(Running)));
  int64_t begin = c.length, index = 0;
  for (int64_t token = first_token; token < last_token; ++token) {
    const int64_t end = c.length - c.tokens + token + 1;
    const int64_t from = c.window > 0 && end > c.window ? end - c.window : 0;
    if (from < begin) begin = from;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head, ++index) {
      Running& q = queries[index];
      q = {mixed + index * c.value_dim, -3e38f, 0.0f, from, end, c.q + token * c.q_token_stride + head * c.q_head_stride};
      for (int64_t d = 0; d < c.value_dim; ++d) q.mixed[d] = 0.0f;
      if (c.sinks != nullptr) {
        q.most = c.sinks[head];
        q.total = 1.0f;
      }
    }
  }
  const int64_t end = c.length - c.tokens + last_token;
  if (c.kv_type == STOKER_F32) attend_keys<KeysF32>(c, kv_head, queries, num_queries, begin, end);
  else attend_keys<KeysBf16>(c, kv_head, queries, num_queries, begin, end);
  index = 0;
  for (int64_t token = first_token; token < last_token; ++token)
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head, ++index) {
      float* y = c.y + (token * c.heads + head) * c.value_dim;
      for (int64_t d = 0; d < c.value_dim; ++d) y[d] = queries[index].mixed[d] / queries[index].total;
    }
}

}  // namespace
}  // namespace stoker
