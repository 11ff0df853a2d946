// x86 with AVX-512, VNNI, BF16 and VBMI (Zen 4, Sapphire Rapids).
#define STOKER_AVX512_TIER avx512_bf16_tier
#define STOKER_AVX512_NAME "avx512_bf16"
#define STOKER_HAS_BF16_DOT 1
#include "tier_avx512.cpp"
