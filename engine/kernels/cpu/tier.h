// What an instruction set offers: one table of functions per tier, chosen once when a pool is made.
// The tiers are compiled with flags of their own, so their files share no inline function of the standard library with the
// rest: the linker might keep the copy that this processor cannot run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stoker_kernels.h"

namespace stoker {

// How a kernel wants its activations.
enum class Operand : int { kF32, kBf16, kQ8 };

// 256 activations as int8, in 16 groups of 16 columns with a scale each. Every lane of a dot product over 512 bits belongs to one
// group, so that a group is scaled once: `even[0]` holds of each lane's group the even ones of its first 8 columns, `even[1]` of
// its last 8, `odd` the odd ones. Even and odd lie apart because a byte of 4-bit weights holds one of each. `offset` undoes the
// bias that makes weight codes unsigned: minus bias times the group's sum.
struct Q8Block {
  int8_t even[2][64], odd[2][64];
  float scale[16];
  int32_t offset[16];
};
constexpr int64_t kQ8Columns = 256;
constexpr int64_t kQ8Group = 16;  // a scale per 32 costs 5.4e-3 of a Gaussian's dot product, per 16 4.7e-3

// The lane of a group: as one in-lane shuffle of two loads of 64 bytes of weights leaves them.
constexpr int64_t q8_lane(int64_t group) { return group % 8 / 2 * 4 + group / 8 * 2 + group % 2; }

inline int64_t blocks_of(int64_t count, int64_t block) { return (count + block - 1) / block; }

// Bytes of one token's operand. An odd number of lines, so that the same column of many tokens meets all sets of the cache.
inline int64_t operand_bytes(Operand kind, int64_t cols) {
  const int64_t bytes = kind == Operand::kF32    ? cols * 4
                        : kind == Operand::kBf16 ? cols * 2
                                                 : blocks_of(cols, kQ8Columns) * int64_t(sizeof(Q8Block));
  return (blocks_of(bytes, 64) | 1) * 64;
}

// Rows of one matrix times the operands of some tokens.
struct Rows {
  const stoker_matrix* matrix;
  Operand kind;
  const char* x;  // token t's operand is at x + x_stride * (x_index ? x_index[t] : t)
  int64_t x_stride;
  const int32_t* x_index;
  int64_t tokens;
  float* y;  // row r of token t goes to y[y_stride * (y_index ? y_index[t] : t) + r - y_first]
  int64_t y_stride, y_first;
  const int32_t* y_index;
  // What this thread reads afterwards, from row `next_row` on, of the same format: a hint to fetch it ahead.
  const stoker_matrix* next = nullptr;
  int64_t next_row = 0;

  const char* operand(int64_t token) const { return x + x_stride * (x_index ? x_index[token] : token); }
  float* result(int64_t token, int64_t row) const {
    return y + y_stride * (y_index ? y_index[token] : token) + row - y_first;
  }
};

struct Tier {
  const char* name;
  Operand (*operand)(const stoker_matrix& matrix, int64_t tokens, bool fast);
  // Columns begin to end of one token as an operand; begin and, short of cols, end are multiples of 16.
  void (*prepare)(Operand kind, const stoker_matrix& consumer, const float* x, int64_t begin, int64_t end, char* operand);
  int64_t (*scratch_bytes)(const stoker_matrix& matrix);  // that `rows` needs, per thread
  void (*rows)(const Rows& job, int64_t begin, int64_t end, char* scratch);  // without the bias
  void (*activate)(int kind, float alpha, float limit, const float* gate, const float* up, int64_t count, float* out);
  void (*weighted_sum)(const float* outputs, int64_t stride, const float* weights, int64_t ranks, int64_t count, float* y);
  void (*attend)(const stoker_attention_call& call, int64_t kv_head, int64_t first_token, int64_t last_token, char* scratch);
  int64_t (*attend_bytes)(const stoker_attention_call& call);  // scratch per thread
  void (*delta)(const stoker_delta_call& call, int64_t key_head, char* scratch);
  int64_t (*delta_bytes)(const stoker_delta_call& call);  // scratch per thread
  void (*rms_norm)(const float* x, const float* weight, int64_t count, float eps, float* out);
  void (*rotate)(float* x, const float* cosine, const float* sine, int64_t half);
  void (*add_to)(float* x, const float* y, int64_t count);
  uint64_t (*read)(const char* data, int64_t bytes);
};

// A row of STOKER_KV_Q8: blocks of a bf16 scale and so many int8, the last block shorter.
constexpr int64_t kRowBlock = 32, kRowScale = 2;
inline int64_t q8_row_bytes(int64_t dim) { return dim + blocks_of(dim, kRowBlock) * kRowScale; }

constexpr int64_t kAttendTokens = 16;  // queries of one task

const Tier* portable_tier();
const Tier* avx2_tier();         // null where the build has none
const Tier* avx512_tier();
const Tier* avx512_bf16_tier();
const Tier* neon_tier();

bool can_run(int isa);               // built in, and this processor and system have it
const Tier* choose_tier(int isa);    // null when unavailable; STOKER_ISA_BEST never is

}  // namespace stoker
