// The operations behind the C boundary. Arguments are checked, the pool is held, memory may still be refused.
#pragma once

#include "pool.h"
#include "tier.h"

struct stoker_pool {
  stoker::Pool pool;
  const stoker::Tier* tier;
  stoker::Scratch between;  // what a call hands to `linear` or gets from it, which uses the rest
};

namespace stoker {

int linear(stoker_pool& p, const float* x, int64_t tokens, const stoker_matrix& matrix, bool fast, float* y);
int moe(stoker_pool& p, const stoker_moe_call& call);
int attention(stoker_pool& p, const stoker_attention_call& call);
int attention_block(stoker_pool& p, const stoker_block_call& call);
int delta_block(stoker_pool& p, const stoker_delta_block_call& call);
int route(stoker_pool& p, const stoker_route_call& call);

constexpr int64_t kTaskRows = 32;  // a task's rows are whole tiles of every kernel but AWQ's

inline int64_t task_rows(const stoker_matrix& m) { return m.format == STOKER_INT4_AWQ ? 4 * kTaskRows : kTaskRows; }

// Adds rows begin to end of the bias to results of `tokens` tokens.
void add_bias(const Rows& job, int64_t begin, int64_t end);

// `rows` and then the bias, which every tier adds alike.
inline void rows_and_bias(const Tier& tier, const Rows& job, int64_t begin, int64_t end, char* scratch) {
  tier.rows(job, begin, end, scratch);
  if (job.matrix->bias != nullptr) add_bias(job, begin, end);
}

inline int64_t align64(int64_t bytes) { return blocks_of(bytes, 64) * 64; }

// Where things lie in the pool's shared memory.
struct Layout {
  int64_t end = 0;
  int64_t take(int64_t bytes) {
    const int64_t at = end;
    end += align64(bytes);
    return at;
  }
};

}  // namespace stoker
