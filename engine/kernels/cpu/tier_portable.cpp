// Any processor.
#include "vec_portable.h"

#include "no_q8.h"

namespace stoker {
namespace {
constexpr int kTileRows = 2, kTileTokens = 2;
}  // namespace
}  // namespace stoker

#include "tier_body.h"

namespace stoker {

const Tier* portable_tier() {
  static constexpr Tier tier = STOKER_TIER_TABLE("portable");
  return &tier;
}

}  // namespace stoker
