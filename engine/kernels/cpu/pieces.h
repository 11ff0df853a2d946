// Rows of several matrices cut into tasks for the pool.
#pragma once

#include <algorithm>

#include "tier.h"

namespace stoker {

int64_t row_bytes(const stoker_matrix& matrix);

// Rows begin to end of one of a call's groups: an expert, or one matrix of several.
struct Piece {
  int32_t group, begin, end;
};

// Batches compute: their pieces are alike, and their results stay in the second-level cache. A few tokens only read: what a
// piece fetches ahead beyond its end is another thread's, so pieces start large (at 64 KB a quarter of the memory's rate is
// lost, at 1 MB nothing that can be measured) and shrink, so that all threads finish together.
class Pieces {
 public:
  static constexpr int64_t kFewTokens = 10;  // of one group

  // `all_bytes` of weights will be cut for `tokens` tokens each; `multiple` rows belong together.
  Pieces(int64_t all_bytes, int64_t tokens, int64_t multiple, int threads)
      : left_(all_bytes), multiple_(multiple), threads_(threads), is_batch_(tokens > kFewTokens) {}

  int64_t most_rows(int64_t row_bytes) const { return rows_for(is_batch_ ? kBatchBytes : kMostBytes, row_bytes); }

  // Upper bound of the pieces of `groups` groups with so many rows.
  int64_t most_pieces(int64_t groups, int64_t rows, int64_t row_bytes) const {
    return groups * blocks_of(rows, rows_for(is_batch_ ? kBatchBytes : kLeastBytes, row_bytes));
  }

  // Appends the pieces of one group to `out`.
  void cut(int32_t group, int64_t rows, int64_t row_bytes, Piece* out) {
    for (int64_t begin = 0; begin < rows;) {
      const int64_t bytes = is_batch_ ? kBatchBytes : std::clamp(left_ / (2 * threads_), kLeastBytes, kMostBytes);
      const int64_t end = std::min(rows, begin + rows_for(bytes, row_bytes));
      out[count++] = {group, int32_t(begin), int32_t(end)};
      left_ -= (end - begin) * row_bytes;
      begin = end;
    }
  }

  int64_t count = 0;

 private:
  static constexpr int64_t kBatchBytes = 64 << 10, kLeastBytes = 32 << 10, kMostBytes = 1 << 20;

  int64_t rows_for(int64_t bytes, int64_t row_bytes) const {
    const int64_t most = is_batch_ ? 256 : 8192;
    return blocks_of(std::clamp(bytes / row_bytes, int64_t(1), most), multiple_) * multiple_;
  }

  int64_t left_, multiple_;
  int threads_;
  bool is_batch_;
};

}  // namespace stoker
