// One matrix for all tokens, split by rows.
#include <algorithm>

#include "calls.h"
#include "pieces.h"
#include "scalar.h"

namespace stoker {
int64_t row_bytes(const stoker_matrix& m) {
  const int64_t apart = std::max(m.element_step, 1);  // what lies between two rows stored by columns is read with them
  switch (m.format) {
    case STOKER_F32: return m.cols * 4 * apart;
    case STOKER_F16:
    case STOKER_BF16: return m.cols * 2 * apart;
    case STOKER_E4M3: return m.cols;
    default: return std::max<int64_t>(1, m.cols / 2);
  }
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
  const int64_t row = row_bytes(matrix);
  Rows all{&matrix, kind, reinterpret_cast<const char*>(x), matrix.cols * 4, nullptr, tokens, y, matrix.rows, 0, nullptr, nullptr, 0};
  Pieces pieces(matrix.rows * row, tokens, task_rows(matrix), p.pool.threads());
  if (kind != Operand::kF32) all.x_stride = operand_bytes(kind, matrix.cols);
  const int64_t operands_bytes = kind == Operand::kF32 ? 0 : align64(tokens * all.x_stride);
  for (int thread = 0; thread < p.pool.threads(); ++thread)
    if (!p.pool.local[thread].reserve(size_t(tier.scratch_bytes(matrix)))) return STOKER_OUT_OF_MEMORY;
  if (!p.pool.shared.reserve(size_t(operands_bytes + pieces.most_pieces(1, matrix.rows, row) * int64_t(sizeof(Piece)))))
    return STOKER_OUT_OF_MEMORY;
  if (kind != Operand::kF32) {
    char* operands = p.pool.shared.at<char>(0);
    all.x = operands;
    p.pool.each(tokens, [&](int64_t token, int) {
      tier.prepare(kind, matrix, x + token * matrix.cols, 0, matrix.cols, operands + token * all.x_stride);
    });
  }
  Piece* piece = p.pool.shared.at<Piece>(size_t(operands_bytes));
  pieces.cut(0, matrix.rows, row, piece);
  p.pool.each(pieces.count, [&](int64_t task, int thread) {
    Rows job = all;
    if (const int64_t after = p.pool.upcoming(thread); after >= 0) {
      job.next = &matrix;
      job.next_row = piece[after].begin;
    }
    rows_and_bias(tier, job, piece[task].begin, piece[task].end, p.pool.local[thread].at<char>(0));
  });
  return STOKER_OK;
}

}  // namespace stoker
