// x86 with AVX2, FMA and F16C (2013 on). An empty table elsewhere.
#include "tier.h"

#if defined(__AVX2__)
#include "ints_avx2.h"

#include "q8_avx2.h"

#include "words4.h"

namespace stoker {
namespace {
constexpr int kTileRows = 2, kTileTokens = 5;  // 10 sums, 2 weights and a token in 16 registers
}  // namespace
}  // namespace stoker

#include "tier_body.h"

namespace stoker {

const Tier* avx2_tier() {
  static constexpr Tier tier = STOKER_TIER_TABLE("avx2");
  return &tier;
}

}  // namespace stoker
#else
const stoker::Tier* stoker::avx2_tier() { return nullptr; }
#endif
