// The gated delta rule, split by key head.
#include "calls.h"

namespace stoker {

int delta(stoker_pool& p, const stoker_delta_call& call) {
  const Tier& tier = *p.tier;
  for (int thread = 0; thread < p.pool.threads(); ++thread)
    if (!p.pool.local[thread].reserve(size_t(tier.delta_bytes(call)))) return STOKER_OUT_OF_MEMORY;
  p.pool.each(call.key_heads, [&](int64_t head, int thread) { tier.delta(call, head, p.pool.local[thread].at<char>(0)); });
  return STOKER_OK;
}

}  // namespace stoker
