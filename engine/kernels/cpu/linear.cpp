// One matrix for all tokens, split by rows.
#include <algorithm>

#include "calls.h"
#include "scalar.h"

namespace stoker {
namespace {

// A task of a batch: its results stay in the second-level cache. A few tokens only read: what a task fetches ahead beyond its
// end is another thread's, so tasks of 64 KB lose a quarter of the memory's rate, and of 1 MB nothing that can be measured.
constexpr int64_t kBatchBytes = 64 << 10, kReadBytes = 1 << 20;
constexpr int64_t kFewTokens = 4, kBatchRows = 256, kReadRows = 8192;
constexpr int64_t kTasksPerThread = 4;  // so that threads finish together

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

int64_t task_rows(const stoker_matrix& matrix, int64_t multiple, int64_t matrices, int64_t tokens, int threads) {
  const int64_t row = row_bytes(matrix), share = matrices * matrix.rows * row / (threads * kTasksPerThread);
  const bool is_batch = tokens > kFewTokens;
  const int64_t bytes = is_batch ? kBatchBytes : std::clamp(share, kBatchBytes, kReadBytes);
  const int64_t rows = std::clamp(bytes / row, int64_t(1), is_batch ? kBatchRows : kReadRows);
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
  const int64_t step = task_rows(matrix, 16, 1, tokens, p.pool.threads());
  p.pool.each(blocks_of(matrix.rows, step), [&](int64_t task, int thread) {
    rows_and_bias(tier, job, task * step, std::min(matrix.rows, (task + 1) * step), p.pool.local[thread].at<char>(0));
  });
  return STOKER_OK;
}

}  // namespace stoker
