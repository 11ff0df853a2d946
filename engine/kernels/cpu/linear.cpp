// One matrix for all tokens, split by rows.
#include <algorithm>

#include "calls.h"
#include "scalar.h"

namespace stoker {
namespace {

// Small enough that threads finish together, large enough that taking a task (50 ns) and refilling the prefetchers is nothing.
constexpr int64_t kTaskBytes = 64 << 10;
constexpr int64_t kMaxTaskRows = 256;

int64_t row_bytes(const stoker_matrix& m) {
  switch (m.format) {
    case STOKER_F32: return m.cols * 4;
    case STOKER_F16:
    case STOKER_BF16: return m.cols * 2;
    case STOKER_E4M3: return m.cols;
    default: return m.cols / 2;
  }
}

}  // namespace

int64_t task_rows(const stoker_matrix& matrix, int64_t multiple) {
  const int64_t rows = std::clamp(kTaskBytes / row_bytes(matrix), int64_t(1), kMaxTaskRows);
  return blocks_of(rows, multiple) * multiple;
}

void add_bias(const Rows& job, int64_t begin, int64_t end) {
  const stoker_matrix& m = *job.matrix;
  for (int64_t row = begin; row < end; ++row) {
    const float bias = scale_value(m.bias_type, static_cast<const char*>(m.bias) + row * m.bias_stride);
    for (int64_t token = 0; token < job.tokens; ++token) *job.result(token, row) += bias;
  }
}

int linear(stoker_pool& p, const float* x, int64_t tokens, const stoker_matrix& matrix, bool fast, float* y) {
  const Tier& tier = *p.tier;
  const Operand kind = tier.operand(matrix, tokens, fast);
  Rows job{&matrix, kind, reinterpret_cast<const char*>(x), matrix.cols * 4, nullptr, tokens, y, matrix.rows, 0, nullptr};
  for (int thread = 0; thread < p.pool.threads(); ++thread)
    if (!p.pool.local[thread].reserve(size_t(tier.scratch_bytes(matrix)))) return STOKER_OUT_OF_MEMORY;
  if (kind != Operand::kF32) {
    job.x_stride = operand_bytes(kind, matrix.cols);
    if (!p.pool.shared.reserve(size_t(tokens * job.x_stride))) return STOKER_OUT_OF_MEMORY;
    char* operands = p.pool.shared.at<char>(0);
    job.x = operands;
    p.pool.each(tokens, [&](int64_t token, int) {
      tier.prepare(kind, matrix, x + token * matrix.cols, 0, matrix.cols, operands + token * job.x_stride);
    });
  }
  const int64_t step = task_rows(matrix, 16);
  p.pool.each(blocks_of(matrix.rows, step), [&](int64_t task, int thread) {
    rows_and_bias(tier, job, task * step, std::min(matrix.rows, (task + 1) * step), p.pool.local[thread].at<char>(0));
  });
  return STOKER_OK;
}

}  // namespace stoker
