// FP8 to fp32 and bf16, 64 weights at a time, by table: half the instructions of sixteen at a time by way of half floats, which
// at one token would fall behind the memory.
#pragma once

#include "vec_avx512.h"

namespace stoker {
namespace {

// The bf16 of each E4M3 magnitude, which is exact, its bytes apart. Times 2^-8, as `load_e4m3`.
struct E4m3Tables {
  alignas(64) uint8_t low[128] = {}, high[128] = {};
  constexpr E4m3Tables() {
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> 3, fraction = (code & 7) << 4;  // of bf16: 7 bits of fraction
      if (exponent == 0) {  // subnormal: shift the leading one out
        exponent = 1;
        while (fraction != 0 && fraction < 128) fraction <<= 1, --exponent;
        fraction &= 127;
      }
      const int bits = code == 0 ? 0 : (exponent - 7 - 8 + 127) << 7 | fraction;
      low[code] = uint8_t(bits & 255);
      high[code] = uint8_t(bits >> 8);
    }
  }
};
constexpr E4m3Tables kE4m3;

// Which byte of 64 stands where, so that unpacking by lanes and splitting words into even and odd leaves sixteen neighbours to
// each vector.
struct E4m3Order {
  alignas(64) uint8_t index[64] = {};
  constexpr E4m3Order() {
    for (int part = 0; part < 4; ++part)
      for (int i = 0; i < 16; ++i) index[16 * (i / 4) + 8 * (part / 2) + 2 * (i % 4) + part % 2] = uint8_t(16 * part + i);
  }
};
constexpr E4m3Order kE4m3Order;

// 64 codes as bf16, exact but for 2^-8: columns 0-7, 16-23, 32-39, 48-55 and then the others.
inline void e4m3_to_bf16(__m512i codes, __m512i& first, __m512i& second) {
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.low), codes, _mm512_load_si512(kE4m3.low + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.high), codes, _mm512_load_si512(kE4m3.high + 64));
  const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(char(0x80)), 0xf8);  // a | (b & c)
  first = _mm512_unpacklo_epi8(low, high);
  second = _mm512_unpackhi_epi8(low, high);
}

struct StepE4m3One {
  using X = float;
  struct Weight {
    F part[4];
  };
  using Activations = Weight;
  static constexpr int kCols = 64, kBytes = 1;

  static Weight load_weight(const uint8_t* p) {
    const __m512i order = _mm512_load_si512(kE4m3Order.index);
    const __m512i codes = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(p));
    __m512i first, second;
    e4m3_to_bf16(codes, first, second);
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(first, 16)), _mm512_castsi512_ps(_mm512_and_si512(first, upper)),
             _mm512_castsi512_ps(_mm512_slli_epi32(second, 16)), _mm512_castsi512_ps(_mm512_and_si512(second, upper))}};
  }
  static Activations load_x(const X* p) { return {{load(p), load(p + 16), load(p + 32), load(p + 48)}}; }
  static F mac(F acc, const Weight& w, const Activations& x) {
    return fma(w.part[3], x.part[3], fma(w.part[2], x.part[2], fma(w.part[1], x.part[1], fma(w.part[0], x.part[0], acc))));
  }
};

}  // namespace
}  // namespace stoker

#define STOKER_HAS_STEP_E4M3_ONE 1
