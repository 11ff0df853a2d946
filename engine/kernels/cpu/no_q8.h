// For tiers without integer dot products: 4-bit weights go through `decoded_rows`.
#pragma once

#include "q8_scalar.h"

namespace stoker {
namespace {

constexpr bool kHasQ8 = false;
int64_t q8_scratch_bytes(const stoker_matrix&) { return 0; }
void q8_rows(const Rows&, int64_t, int64_t, char*) {}
constexpr int64_t kWordScratch = 0;
void word_rows(const Rows&, int64_t, int64_t, char*) {}

}  // namespace
}  // namespace stoker
