// The table of one tier, from whichever vector type, tile sizes and 4-bit kernels the including file chose.
#pragma once

#include "activate.h"
#include "attend.h"
#include "delta.h"
#include "frame.h"
#include "rows_columns.h"
#include "rows_float.h"

namespace stoker {
namespace {

#ifndef STOKER_HAS_BF16_DOT
constexpr bool kHasBf16 = false;
void bf16_rows(const Rows&, int64_t, int64_t, char*) {}
int64_t bf16_scratch_bytes(const stoker_matrix&) { return 0; }
void prepare_bf16(const float*, int64_t, int64_t, char*) {}
#endif

// Below this many tokens the memory is the limit, and fp32 activations cost nothing.
constexpr int64_t kFewTokens = 4;

bool has_q8(const stoker_matrix& m) { return kHasQ8 && m.format >= STOKER_E2M1; }
bool in_words(const stoker_matrix& m) { return m.format >= STOKER_INT4_GPTQ; }

Operand operand(const stoker_matrix& m, int64_t tokens, bool fast) {
  if (m.element_step != 0) return Operand::kF32;
  if (has_q8(m)) return Operand::kQ8;
  if (!kHasBf16 || !fast) return Operand::kF32;
  if (m.format == STOKER_E4M3) return Operand::kBf16;  // at any number: in fp32 the processor, not the memory, would be the limit
  const bool is_short = m.format == STOKER_F16 || m.format == STOKER_BF16;
  return is_short && tokens >= kFewTokens ? Operand::kBf16 : Operand::kF32;
}

void prepare(Operand kind, const stoker_matrix& consumer, const float* x, int64_t begin, int64_t end, char* out) {
  if (kind == Operand::kF32) memcpy(out + begin * 4, x + begin, size_t(end - begin) * 4);
  if (kind == Operand::kBf16) prepare_bf16(x, begin, end, out);
  if (kind != Operand::kQ8) return;
  Q8Block* blocks = reinterpret_cast<Q8Block*>(out);
  const int bias = code_bias(consumer);
  const int64_t padded = end == consumer.cols ? blocks_of(end, kQ8Columns) * kQ8Columns : end;
  for (int64_t col = begin; col < padded; col += kQ8Group) {
    const int64_t left = end - col, count = left < 0 ? 0 : left < kQ8Group ? left : kQ8Group;
    quantise_group(x + (count > 0 ? col : begin), count, bias, blocks[col / kQ8Columns], col % kQ8Columns / kQ8Group);
  }
}

int64_t scratch_bytes(const stoker_matrix& m) {
  if (m.element_step != 0) return column_scratch_bytes(m);
  if (has_q8(m)) return in_words(m) ? kWordScratch : q8_scratch_bytes(m);
  const int64_t row = blocks_of(m.cols, 16) * 64, bf16 = bf16_scratch_bytes(m);
  return bf16 > row ? bf16 : row;
}

void rows(const Rows& job, int64_t begin, int64_t end, char* scratch) {
  if (job.matrix->element_step != 0) return column_rows(job, begin, end, scratch);
  if (job.kind == Operand::kQ8) return in_words(*job.matrix) ? word_rows(job, begin, end, scratch) : q8_rows(job, begin, end, scratch);
  if (job.kind == Operand::kBf16) return bf16_rows(job, begin, end, scratch);
  if (job.matrix->format >= STOKER_E2M1) return decoded_rows(job, begin, end, scratch);
  float_rows(job, begin, end);
}

uint64_t read_all(const char* data, int64_t bytes) {
  constexpr int64_t kStep = 8 * W * 4, kAhead = 4096;  // a page ahead: the prefetchers stop at its end
  F sums[8];
  for (F& lane : sums) lane = zero();
  int64_t at = 0;
  for (; at + kStep <= bytes; at += kStep)
    for (int i = 0; i < 8; ++i) {
      if (i * W * 4 % 64 == 0) prefetch(data + at + i * W * 4 + kAhead);
      sums[i] = vmax(sums[i], load(reinterpret_cast<const float*>(data + at) + i * W));
    }
  uint64_t out = 0;
  for (; at < bytes; ++at) out += uint8_t(data[at]);
  for (const F& lane : sums) out += to_bits(highest(lane));
  return out;
}

#define STOKER_TIER_TABLE(name) \
  {name, operand, prepare, scratch_bytes, rows, activate, weighted_sum, attend, attend_bytes, delta, \
   delta_bytes, rms_norm, rotate, add_to, read_all}

}  // namespace
}  // namespace stoker
