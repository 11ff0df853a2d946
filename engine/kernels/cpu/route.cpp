// Which experts a token goes to: the router's product, the highest of its rows, their softmax.
#include <cmath>

#include "calls.h"

namespace stoker {
namespace {

// ids by falling logit, of equals the first; by insertion, since top_k is small. NaN ranks below everything.
void choose(const float* logits, int64_t experts, int64_t top_k, bool renormalise, int32_t* ids, float* weights) {
  int64_t held = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const float logit = logits[expert] == logits[expert] ? logits[expert] : -INFINITY;
    if (held == top_k && !(logit > weights[held - 1])) continue;
    int64_t at = held < top_k ? held++ : held - 1;
    for (; at > 0 && logit > weights[at - 1]; --at) {
      weights[at] = weights[at - 1];
      ids[at] = ids[at - 1];
    }
    weights[at] = logit;
    ids[at] = int32_t(expert);
  }
  const float most = weights[0];
  float total = 0.0f;
  if (renormalise) {
    for (int64_t rank = 0; rank < top_k; ++rank) total += std::exp(weights[rank] - most);
  } else {
    for (int64_t expert = 0; expert < experts; ++expert) total += std::exp(logits[expert] - most);
  }
  for (int64_t rank = 0; rank < top_k; ++rank) weights[rank] = std::exp(weights[rank] - most) / total;
}

}  // namespace

int route(stoker_pool& p, const stoker_route_call& call) {
  const int64_t experts = call.router->rows;
  if (!p.between.reserve(size_t(call.tokens * experts * 4))) return STOKER_OUT_OF_MEMORY;
  float* all = p.between.at<float>(0);
  if (const int status = linear(p, call.x, call.tokens, *call.router, false, all)) return status;
  p.pool.each(call.tokens, [&](int64_t token, int) {
    choose(all + token * experts, experts, call.top_k, (call.flags & STOKER_RENORMALISE) != 0, call.ids + token * call.top_k,
           call.weights + token * call.top_k);
  });
  return STOKER_OK;
}

}  // namespace stoker
