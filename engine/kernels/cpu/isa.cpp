// Which tiers this processor and operating system can run.
#include <initializer_list>

#include "tier.h"

#if defined(__x86_64__) || defined(_M_X64)
#define STOKER_X86 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace stoker {
namespace {

#ifdef STOKER_X86

struct Cpuid {
  uint32_t eax, ebx, ecx, edx;
};

Cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
  Cpuid out{};
#if defined(_MSC_VER)
  int registers[4];
  __cpuidex(registers, int(leaf), int(subleaf));
  out = {uint32_t(registers[0]), uint32_t(registers[1]), uint32_t(registers[2]), uint32_t(registers[3])};
#else
  __get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx);
#endif
  return out;
}

uint64_t enabled_state() {  // registers that the operating system saves
#if defined(_MSC_VER)
  return _xgetbv(0);
#else
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
#endif
}

bool bit(uint32_t word, int index) { return word >> index & 1; }

struct Features {
  bool avx2 = false, avx512 = false, bf16 = false;
};

Features detect() {
  Features found;
  const Cpuid basic = cpuid(1, 0), extended = cpuid(7, 0);
  if (!bit(basic.ecx, 27)) return found;  // OSXSAVE
  const uint64_t state = enabled_state();
  const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6;
  found.avx2 = ymm && bit(basic.ecx, 12) && bit(basic.ecx, 29) && bit(extended.ebx, 5);  // FMA, F16C, AVX2
  found.avx512 = found.avx2 && zmm && bit(extended.ebx, 16) && bit(extended.ebx, 17) && bit(extended.ebx, 30) &&
                 bit(extended.ebx, 31) && bit(extended.ecx, 11);  // F, DQ, BW, VL, VNNI
  found.bf16 = found.avx512 && bit(cpuid(7, 1).eax, 5) && bit(extended.ecx, 1);  // BF16, VBMI
  return found;
}

#endif

bool processor_has(int isa) {
#ifdef STOKER_X86
  static const Features found = detect();
  if (isa == STOKER_ISA_AVX2) return found.avx2;
  if (isa == STOKER_ISA_AVX512) return found.avx512;
  if (isa == STOKER_ISA_AVX512_BF16) return found.bf16;
#endif
  return isa == STOKER_ISA_PORTABLE || isa == STOKER_ISA_NEON;  // NEON: part of every aarch64
}

const Tier* built(int isa) {
  switch (isa) {
    case STOKER_ISA_PORTABLE: return portable_tier();
    case STOKER_ISA_AVX2: return avx2_tier();
    case STOKER_ISA_AVX512: return avx512_tier();
    case STOKER_ISA_AVX512_BF16: return avx512_bf16_tier();
    case STOKER_ISA_NEON: return neon_tier();
    default: return nullptr;
  }
}

}  // namespace

bool can_run(int isa) { return processor_has(isa) && built(isa) != nullptr; }

const Tier* choose_tier(int isa) {
  if (isa != STOKER_ISA_BEST) return can_run(isa) ? built(isa) : nullptr;
  for (int best : {STOKER_ISA_AVX512_BF16, STOKER_ISA_AVX512, STOKER_ISA_AVX2, STOKER_ISA_NEON})
    if (can_run(best)) return built(best);
  return portable_tier();
}

}  // namespace stoker
