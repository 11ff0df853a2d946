// x86 with AVX-512 and VNNI; compiled a second time, as tier_avx512_bf16.cpp, for processors that have BF16 and VBMI too.
#include "tier.h"

#ifndef STOKER_AVX512_TIER
#define STOKER_AVX512_TIER avx512_tier
#define STOKER_AVX512_NAME "avx512"
#endif

#if defined(__AVX512VNNI__)
#include "ints_avx512.h"

#include "q8_avx512.h"

#include "words4.h"

namespace stoker {
namespace {
constexpr int kTileRows = 4, kTileTokens = 6;  // 24 sums, 4 weights and a token in 32 registers
}  // namespace
}  // namespace stoker

#if defined(STOKER_HAS_BF16_DOT)
#include "e4m3_vbmi.h"

#include "bf16_avx512.h"
#endif
#include "tier_body.h"

namespace stoker {

const Tier* STOKER_AVX512_TIER() {
  static constexpr Tier tier = STOKER_TIER_TABLE(STOKER_AVX512_NAME);
  return &tier;
}

}  // namespace stoker
#else
const stoker::Tier* stoker::STOKER_AVX512_TIER() { return nullptr; }
#endif
