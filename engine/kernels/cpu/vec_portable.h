// Eight floats in plain C++, which a compiler may turn into whatever it has.
#pragma once

#include <cmath>

#include "scalar.h"

namespace stoker {
namespace {

constexpr int W = 8;
struct F {
  float lane[W];
};

template <class Fn>
inline F lanes(Fn fn) {
  F out;
  for (int i = 0; i < W; ++i) out.lane[i] = fn(i);
  return out;
}

inline F set1(float a) { return lanes([=](int) { return a; }); }
inline F zero() { return set1(0.0f); }
inline F load(const float* p) {  // from any address
  F out;
  memcpy(out.lane, p, sizeof out.lane);
  return out;
}
inline void store(float* p, const F& a) { memcpy(p, a.lane, sizeof a); }
inline F load_part(const float* p, int64_t count) {
  F out = zero();
  memcpy(out.lane, p, size_t(count) * 4);
  return out;
}
inline void store_part(float* p, const F& a, int64_t count) { memcpy(p, a.lane, size_t(count) * 4); }
inline F add(const F& a, const F& b) { return lanes([&](int i) { return a.lane[i] + b.lane[i]; }); }
inline F sub(const F& a, const F& b) { return lanes([&](int i) { return a.lane[i] - b.lane[i]; }); }
inline F mul(const F& a, const F& b) { return lanes([&](int i) { return a.lane[i] * b.lane[i]; }); }
inline F div(const F& a, const F& b) { return lanes([&](int i) { return a.lane[i] / b.lane[i]; }); }
inline F vmin(const F& a, const F& b) { return lanes([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; }); }
inline F vmax(const F& a, const F& b) { return lanes([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; }); }
inline F fma(const F& a, const F& b, const F& c) { return lanes([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; }); }
inline float sum(const F& a) {
  return ((a.lane[0] + a.lane[4]) + (a.lane[2] + a.lane[6])) + ((a.lane[1] + a.lane[5]) + (a.lane[3] + a.lane[7]));
}
inline float highest(const F& a) {
  float most = a.lane[0];
  for (int i = 1; i < W; ++i) most = a.lane[i] > most ? a.lane[i] : most;
  return most;
}
inline F nearest(const F& a) {  // to nearest even, for what fits 22 bits
  const float magic = 12582912.0f;  // 1.5 * 2^23
  return lanes([&](int i) { return std::fabs(a.lane[i]) < 4194304.0f ? (a.lane[i] + magic) - magic : a.lane[i]; });
}
inline F times_pow2(const F& a, const F& n) {  // n integral, -126 to 127
  return lanes([&](int i) { return a.lane[i] * from_bits(uint32_t(int32_t(n.lane[i]) + 127) << 23); });
}

inline F load_f16(const uint8_t* p) { return lanes([=](int i) { return from_f16(stoker::read<uint16_t>(p + 2 * i)); }); }
inline F load_bf16(const uint8_t* p) { return lanes([=](int i) { return from_bf16(stoker::read<uint16_t>(p + 2 * i)); }); }
// The first of each two bf16.
inline F load_e4m3(const uint8_t* p) {  // times 2^-8
  return lanes([=](int i) { return from_e4m3(p[i]) * (1.0f / kE4m3Lift); });
}
inline F load_i8(const uint8_t* p) { return lanes([=](int i) { return float(int8_t(p[i])); }); }
inline F load_e8m0(const uint8_t* p) { return lanes([=](int i) { return from_e8m0(p[i]); }); }
inline void prefetch(const void*) {}

}  // namespace
}  // namespace stoker
