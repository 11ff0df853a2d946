// Attention of a few queries over one key and value head, with a running softmax (Milakov and Gimelshein 2018).
#pragma once

#include "activate.h"

namespace stoker {
namespace {

constexpr int64_t kKeys = 64;  // positions whose logits are made before the softmax moves on

// How a row of keys or values lies in memory: W of its numbers from number d on, a multiple of W, or one. `kBytes` is what strides count.
struct KeysF32 {
  static constexpr int kBytes = 4;
  static const char* at(const char* row, int64_t d) { return row + d * 4; }
  static F load_at(const char* row, int64_t d) { return load(reinterpret_cast<const float*>(at(row, d))); }
  static float value_at(const char* row, int64_t d) { return stoker::read<float>(at(row, d)); }
};
struct KeysBf16 {
  static constexpr int kBytes = 2;
  static const char* at(const char* row, int64_t d) { return row + d * 2; }
  static F load_at(const char* row, int64_t d) { return load_bf16(reinterpret_cast<const uint8_t*>(at(row, d))); }
  static float value_at(const char* row, int64_t d) { return from_bf16(stoker::read<uint16_t>(at(row, d))); }
};
struct KeysQ8 {
  static constexpr int kBytes = 1;
  static const char* at(const char* row, int64_t d) { return row + d + (d / kRowBlock + 1) * kRowScale; }
  static float scale_at(const char* row, int64_t d) {
    return from_bf16(stoker::read<uint16_t>(row + d / kRowBlock * (kRowBlock + kRowScale)));
  }
  static F load_at(const char* row, int64_t d) {
    return mul(load_i8(reinterpret_cast<const uint8_t*>(at(row, d))), set1(scale_at(row, d)));
  }
  static float value_at(const char* row, int64_t d) { return scale_at(row, d) * float(stoker::read<int8_t>(at(row, d))); }
};

template <int N>
inline void sum_each(const F (&lanes)[N], float* out) {
#ifdef STOKER_HAS_SUMS
  if constexpr (N == 4) return _mm_storeu_ps(out, sums_of(lanes[0], lanes[1], lanes[2], lanes[3]));
#endif
  for (int i = 0; i < N; ++i) out[i] = sum(lanes[i]);
}

// One query of one head in progress: the highest logit, the sum of exponentials and the mixed values, relative to it.
struct Running {
  float* mixed;
  float most, total;
  int64_t begin, end;  // positions it sees
  const float* query;
};

// Keys by queries of one register block: 16 sums for 32 registers, 4 for 16. Each load then serves several products.
constexpr int kKeyBlock = W == 16 ? 4 : 2;
constexpr int kValueBlock = W == 16 ? 4 : 2;  // vectors of the value dimension likewise

// out[r][k] of R queries and KB keys.
template <class K, int R, int KB>
inline void logits_block(const stoker_attention_call& c, Running* const* queries, const char* keys, float (*out)[kKeys], int64_t k) {
  const int64_t dim = c.head_dim, whole = dim / W * W, stride = c.key_token_stride * K::kBytes;
  F acc[R][KB];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    for (F& lane : acc[r]) lane = zero();
  for (int64_t d = 0; d < whole; d += W) {
    F key[KB];
#pragma GCC unroll 4
    for (int i = 0; i < KB; ++i) key[i] = K::load_at(keys + i * stride, d);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const F query = load(queries[r]->query + d);
#pragma GCC unroll 4
      for (int i = 0; i < KB; ++i) acc[r][i] = fma(key[i], query, acc[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    float sums[KB];
    sum_each(acc[r], sums);
    for (int i = 0; i < KB; ++i) {
      for (int64_t d = whole; d < dim; ++d) sums[i] += K::value_at(keys + i * stride, d) * queries[r]->query[d];
      out[r][k + i] = sums[i] * c.scale;
    }
  }
}

// logits[q][k] of R queries and `count` keys, at most kKeys.
template <class K, int R>
void logits_of(const stoker_attention_call& c, Running* const* queries, const char* keys, int64_t count, float (*out)[kKeys]) {
  const int64_t stride = c.key_token_stride * K::kBytes;
  int64_t k = 0;
  for (; k + kKeyBlock <= count; k += kKeyBlock) logits_block<K, R, kKeyBlock>(c, queries, keys + k * stride, out, k);
  for (; k < count; ++k) logits_block<K, R, 1>(c, queries, keys + k * stride, out, k);
}

// The same keys with the position innermost, [dim][kKeys] fp32: so a lane is a key and no sum runs across lanes. Worth its while
// for `kManyQueries` of them.
constexpr int64_t kManyQueries = 8;

template <class K>
void turn_keys(const stoker_attention_call& c, const char* keys, int64_t count, float* turned) {
  const int64_t stride = c.key_token_stride * K::kBytes;
  int64_t d = 0;
#ifdef STOKER_HAS_TRANSPOSE
  for (; d + W <= c.head_dim; d += W)
    for (int64_t k = 0; k < kKeys; k += W) {
      F in[W], out[W];
      for (int i = 0; i < W; ++i) {
        const char* row = keys + (k + i < count ? k + i : count - 1) * stride;
        in[i] = K::load_at(row, d);
        prefetch(K::at(row, d) + kKeys * stride);  // the next block
      }
      transpose(in, out);
      for (int i = 0; i < W; ++i) store(turned + (d + i) * kKeys + k, out[i]);
    }
#endif
  for (; d < c.head_dim; ++d)
    for (int64_t k = 0; k < kKeys; ++k) turned[d * kKeys + k] = K::value_at(keys + (k < count ? k : count - 1) * stride, d);
}

template <int R>
void logits_of_turned(const stoker_attention_call& c, Running* const* queries, const float* turned, float (*out)[kKeys]) {
  for (int64_t k = 0; k < kKeys; k += kKeyBlock * W) {
    F acc[R][kKeyBlock];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      for (F& lane : acc[r]) lane = zero();
    for (int64_t d = 0; d < c.head_dim; ++d) {
      F key[kKeyBlock];
#pragma GCC unroll 4
      for (int i = 0; i < kKeyBlock; ++i) key[i] = load(turned + d * kKeys + k + i * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const F query = set1(queries[r]->query[d]);
#pragma GCC unroll 4
        for (int i = 0; i < kKeyBlock; ++i) acc[r][i] = fma(key[i], query, acc[r][i]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < kKeyBlock; ++i) store(out[r] + k + i * W, mul(acc[r][i], set1(c.scale)));
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
  for (int64_t k = 0; k < from; ++k) logits[k] = -__builtin_inff();
  for (int64_t k = to; k < kKeys; ++k) logits[k] = -__builtin_inff();
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
  for (int64_t k = 0; k < from; ++k) logits[k] = 0.0f;  // the exponential saturates above 0
  for (int64_t k = to; k < kKeys; ++k) logits[k] = 0.0f;
  for (int64_t k = 0; k < kKeys; k += W) total = add(total, load(logits + k));
  q.total += sum(total);
}

template <class K, int R, int DB>
inline void mix_block(Running* const* queries, const char* values, int64_t stride, int64_t count, const float (*weights)[kKeys],
                      int64_t d, bool fetch_next) {
  F acc[R][DB];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < DB; ++i) acc[r][i] = load(queries[r]->mixed + d + i * W);
  for (int64_t k = 0; k < count; ++k) {
    F value[DB];
#pragma GCC unroll 4
    for (int i = 0; i < DB; ++i) {
      value[i] = K::load_at(values + k * stride, d + i * W);
      if (fetch_next) prefetch(K::at(values + (k + kKeys) * stride, d + i * W));
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const F weight = set1(weights[r][k]);
#pragma GCC unroll 4
      for (int i = 0; i < DB; ++i) acc[r][i] = fma(value[i], weight, acc[r][i]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < DB; ++i) store(queries[r]->mixed + d + i * W, acc[r][i]);
}

template <class K, int R>
void mix(const stoker_attention_call& c, Running* const* queries, const char* values, int64_t count, const float (*weights)[kKeys],
         bool fetch_next) {
  const int64_t dim = c.value_dim, whole = dim / W * W, stride = c.value_token_stride * K::kBytes;
  int64_t d = 0;
  for (; d + kValueBlock * W <= whole; d += kValueBlock * W) mix_block<K, R, kValueBlock>(queries, values, stride, count, weights, d, fetch_next);
  for (; d < whole; d += W) mix_block<K, R, 1>(queries, values, stride, count, weights, d, fetch_next);
  for (; d < dim; ++d)
    for (int64_t k = 0; k < count; ++k) {
      const float value = K::value_at(values + k * stride, d);
      for (int r = 0; r < R; ++r) queries[r]->mixed[d] += value * weights[r][k];
    }
}

// `turned` is the block of keys as `turn_keys` leaves it, or null; the first group brings the next block of values.
template <class K, int R>
void attend_group(const stoker_attention_call& c, Running* const* queries, const char* keys, const char* values, int64_t key,
                  int64_t count, const float* turned, bool fetch_next, float (*logits)[kKeys]) {
  if (turned != nullptr) {
    logits_of_turned<R>(c, queries, turned, logits);
  } else {
    for (int r = 0; r < R; ++r)
      for (int64_t k = count; k < kKeys; ++k) logits[r][k] = 0.0f;
    logits_of<K, R>(c, queries, keys, count, logits);
  }
  for (int r = 0; r < R; ++r) fold(c, *queries[r], logits[r], key, count);
  mix<K, R>(c, queries, values, count, logits, fetch_next);
}

template <class K>
void attend_keys(const stoker_attention_call& c, int64_t kv_head, Running* queries, int64_t num_queries, int64_t begin, int64_t end, float* scratch) {
  alignas(64) float logits[4][kKeys];
  const char* keys = static_cast<const char*>(c.keys) + kv_head * c.key_head_stride * K::kBytes;
  const char* values = static_cast<const char*>(c.values) + kv_head * c.value_head_stride * K::kBytes;
  for (int64_t key = begin; key < end; key += kKeys) {
    const int64_t count = end - key < kKeys ? end - key : kKeys;
    const char* k_at = keys + key * c.key_token_stride * K::kBytes;
    const char* v_at = values + key * c.value_token_stride * K::kBytes;
    float* turned = num_queries >= kManyQueries ? scratch : nullptr;
    if (turned != nullptr) turn_keys<K>(c, k_at, count, turned);
    Running* seeing[4];
    int held = 0;
    for (int64_t q = 0; q < num_queries; ++q) {
      if (queries[q].begin < key + count && queries[q].end > key) seeing[held++] = &queries[q];
      if (held == 4) {
        attend_group<K, 4>(c, seeing, k_at, v_at, key, count, turned, q < 4, logits);
        held = 0;
      }
    }
    if (held >= 2) attend_group<K, 2>(c, seeing, k_at, v_at, key, count, turned, num_queries < 4, logits);
    if (held % 2 == 1) attend_group<K, 1>(c, seeing + held - 1, k_at, v_at, key, count, turned, num_queries < 4, logits);
  }
}

int64_t attend_bytes(const stoker_attention_call& c) {
  const int64_t queries = c.heads / c.kv_heads * kAttendTokens;
  return queries * (c.value_dim * 4 + int64_t(sizeof(Running))) + 64 + kKeys * c.head_dim * 4;
}

// All heads that share `kv_head`, tokens first to last: each block of keys is read once for all of them.
void attend(const stoker_attention_call& c, int64_t kv_head, int64_t first_token, int64_t last_token, char* scratch) {
  const int64_t group = c.heads / c.kv_heads, num_queries = group * (last_token - first_token);
  float* turned = reinterpret_cast<float*>(scratch);
  Running* queries = reinterpret_cast<Running*>(turned + kKeys * c.head_dim);
  float* mixed = reinterpret_cast<float*>(queries + num_queries);
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
  switch (c.kv_type) {
    case STOKER_F32: attend_keys<KeysF32>(c, kv_head, queries, num_queries, begin, end, turned); break;
    case STOKER_BF16: attend_keys<KeysBf16>(c, kv_head, queries, num_queries, begin, end, turned); break;
    default: attend_keys<KeysQ8>(c, kv_head, queries, num_queries, begin, end, turned);
  }
  index = 0;
  for (int64_t token = first_token; token < last_token; ++token)
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head, ++index) {
      float* y = c.y + (token * c.heads + head) * c.value_dim;
      for (int64_t d = 0; d < c.value_dim; ++d) y[d] = queries[index].mixed[d] / queries[index].total;
    }
}

}  // namespace
}  // namespace stoker
