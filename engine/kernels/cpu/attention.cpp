// Attention split by key head and by blocks of queries.
#include <algorithm>

#include "calls.h"

namespace stoker {

int attention(stoker_pool& p, const stoker_attention_call& call) {
  const Tier& tier = *p.tier;
  for (int thread = 0; thread < p.pool.threads(); ++thread)
    if (!p.pool.local[thread].reserve(size_t(tier.attend_bytes(call)))) return STOKER_OUT_OF_MEMORY;
  const int64_t parts = blocks_of(call.tokens, kAttendTokens);
  p.pool.each(call.kv_heads * parts, [&](int64_t task, int thread) {
    const int64_t first = (parts - 1 - task / call.kv_heads) * kAttendTokens;  // late queries see most: they go first
    tier.attend(call, task % call.kv_heads, first, std::min(call.tokens, first + kAttendTokens), p.pool.local[thread].at<char>(0));
  });
  return STOKER_OK;
}

}  // namespace stoker
