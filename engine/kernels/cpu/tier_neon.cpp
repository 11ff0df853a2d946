// AArch64. An empty table elsewhere.
#include "tier.h"

#if defined(__aarch64__) || defined(_M_ARM64)
#include "vec_neon.h"

#include "no_q8.h"

namespace stoker {
namespace {
constexpr int kTileRows = 4, kTileTokens = 6;  // 24 sums, 4 weights and a token in 32 registers
}  // namespace
}  // namespace stoker

#include "tier_body.h"

namespace stoker {

const Tier* neon_tier() {
  static constexpr Tier tier = STOKER_TIER_TABLE("neon");
  return &tier;
}

}  // namespace stoker
#else
const stoker::Tier* stoker::neon_tier() { return nullptr; }
#endif
