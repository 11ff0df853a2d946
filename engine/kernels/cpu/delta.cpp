// The gated delta rule, split by key head; and the whole half of a layer that it stands in.
#include <cstring>

#include "calls.h"

namespace stoker {
namespace {

struct Sizes {
  int64_t keys, values, channels, shared_by;
  explicit Sizes(const stoker_delta_call& c)
      : keys(c.key_heads * c.key_dim), values(c.value_heads * c.value_dim), channels(2 * keys + values),
        shared_by(c.value_heads / c.key_heads) {}
};

// Rows that come by key head (queries, keys, values, gate; rate, decay) to where the rule wants them.
void ungroup(const stoker_delta_call& c, const float* main, const float* small, float* mixed, float* gate, float* rate, float* decay) {
  const Sizes s(c);
  const int64_t own = s.shared_by * c.value_dim;
  auto take = [&](float* to, int64_t count) {
    memcpy(to, main, size_t(count) * 4);
    main += count;
  };
  for (int64_t head = 0; head < c.key_heads; ++head) {
    take(mixed + head * c.key_dim, c.key_dim);
    take(mixed + s.keys + head * c.key_dim, c.key_dim);
    take(mixed + 2 * s.keys + head * own, own);
    take(gate + head * own, own);
    memcpy(rate + head * s.shared_by, small + 2 * head * s.shared_by, size_t(s.shared_by) * 4);
    memcpy(decay + head * s.shared_by, small + (2 * head + 1) * s.shared_by, size_t(s.shared_by) * 4);
  }
}

int apply(stoker_pool& p, const stoker_delta_call& rule) {
  const Tier& tier = *p.tier;
  for (int thread = 0; thread < p.pool.threads(); ++thread)
    if (!p.pool.local[thread].reserve(size_t(tier.delta_bytes(rule)))) return STOKER_OUT_OF_MEMORY;
  p.pool.each(rule.key_heads, [&](int64_t head, int thread) { tier.delta(rule, head, p.pool.local[thread].at<char>(0)); });
  return STOKER_OK;
}

}  // namespace

int delta_block(stoker_pool& p, const stoker_delta_block_call& call) {
  stoker_delta_call rule = call.rule;
  const Sizes s(rule);
  const bool fast = (call.flags & STOKER_FAST) != 0;
  Layout layout;
  const int64_t normed_at = layout.take(call.hidden * 4), mixed_at = layout.take(s.channels * 4), gate_at = layout.take(s.values * 4);
  const int64_t rate_at = layout.take(rule.value_heads * 4), decay_at = layout.take(rule.value_heads * 4), y_at = layout.take(s.values * 4);
  const int64_t main_at = layout.take((s.channels + s.values) * 4), small_at = layout.take(2 * rule.value_heads * 4);
  if (!p.between.reserve(size_t(layout.end))) return STOKER_OUT_OF_MEMORY;
  auto at = [&](int64_t offset) { return p.between.at<float>(size_t(offset)); };
  p.tier->rms_norm(call.x, call.input_norm, call.hidden, rule.eps, at(normed_at));
  const bool is_grouped = call.inputs[2] == nullptr;
  const int64_t to[4] = {is_grouped ? main_at : mixed_at, is_grouped ? small_at : gate_at, rate_at, decay_at};
  for (int i = 0; i < (is_grouped ? 2 : 4); ++i)
    if (const int status = linear(p, at(normed_at), 1, *call.inputs[i], fast, at(to[i]))) return status;
  if (is_grouped) ungroup(rule, at(main_at), at(small_at), at(mixed_at), at(gate_at), at(rate_at), at(decay_at));
  rule.mixed = at(mixed_at);
  rule.gate = at(gate_at);
  rule.rate = at(rate_at);
  rule.decay = at(decay_at);
  rule.y = at(y_at);
  if (const int status = apply(p, rule)) return status;
  if (const int status = linear(p, rule.y, 1, *call.out, fast, call.normed)) return status;
  p.tier->add_to(call.x, call.normed, call.hidden);
  p.tier->rms_norm(call.x, call.post_norm, call.hidden, rule.eps, call.normed);
  return STOKER_OK;
}

}  // namespace stoker
