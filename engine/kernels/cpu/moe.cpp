// The routed experts of one layer: tokens grouped by expert, gate, up and activation in one pass over the threads, down in a
// second, the weighted sum in a third. Every weight byte is read once, and a token's result does not depend on the others.
#include <algorithm>

#include "calls.h"

namespace stoker {
namespace {

// The assignments of one expert: `count` of them from `first` on in the sorted order.
struct Group {
  const stoker_expert* expert;
  int64_t first, count;
};

// One expert's rows that one task computes.
struct Piece {
  int32_t group, begin, end;
};

// Where things lie in the pool's shared memory, and how the layer's two halves take their activations.
struct Layout {
  int64_t end = 0;
  int64_t take(int64_t bytes) {
    const int64_t at = end;
    end += align64(bytes);
    return at;
  }
};

class Layer {
 public:
  Layer(stoker_pool& p, const stoker_moe_call& call) : pool_(p.pool), tier_(*p.tier), c_(call) {}

  int run() {
    if (const int status = reserve()) return status;
    sort();
    prepare_inputs();
    gate_and_up();
    down();
    if (c_.y != nullptr) sum();
    return STOKER_OK;
  }

 private:
  const stoker_expert& any() const { return *any_; }
  bool has_gate() const { return any().gate.data != nullptr; }

  int reserve() {
    const int64_t slots = c_.tokens * c_.top_k;
    for (int64_t i = 0; i < slots && any_ == nullptr; ++i)
      if (c_.ids[i] >= 0) any_ = &c_.experts[c_.ids[i]];
    Layout layout;
    order_at_ = layout.take(slots * 4);
    token_at_ = layout.take(slots * 4);
    start_at_ = layout.take((c_.num_experts + 1) * 4);
    groups_at_ = layout.take(std::min(slots, c_.num_experts) * int64_t(sizeof(Group)));
    if (c_.outputs == nullptr) outputs_at_ = layout.take(slots * c_.hidden * 4);
    if (any_ != nullptr) {
      // The same kind for every expert of the layer, by how many tokens an expert would have if all were routed alike: what
      // a token gets must not depend on which experts are part of this call.
      const bool fast = c_.flags & STOKER_FAST;
      in_ = tier_.operand(any().up, c_.tokens, fast);
      mid_ = tier_.operand(any().down, c_.tokens, fast);
      in_stride_ = in_ == Operand::kF32 ? c_.hidden * 4 : operand_bytes(in_, c_.hidden);
      mid_stride_ = operand_bytes(mid_, c_.intermediate);
      if (in_ != Operand::kF32) in_at_ = layout.take(c_.tokens * in_stride_);
      mid_at_ = layout.take(slots * mid_stride_);
      const int64_t experts = std::min(slots, c_.num_experts);
      step_up_ = task_rows(any().up, 32, experts, c_.tokens, pool_.threads());
      step_down_ = task_rows(any().down, 32, experts, c_.tokens, pool_.threads());
      pieces_at_ = layout.take(experts * std::max(blocks_of(c_.intermediate, step_up_), blocks_of(c_.hidden, step_down_)) *
                               int64_t(sizeof(Piece)));
      tile_at_ = align64(std::max(tier_.scratch_bytes(any().up), tier_.scratch_bytes(any().down)));
      const int64_t local = tile_at_ + 3 * kTokens * step_up_ * 4;
      for (int thread = 0; thread < pool_.threads(); ++thread)
        if (!pool_.local[thread].reserve(size_t(local))) return STOKER_OUT_OF_MEMORY;
    }
    return pool_.shared.reserve(size_t(layout.end)) ? STOKER_OK : STOKER_OUT_OF_MEMORY;
  }

  // Counting sort of the assignments by expert; within one, by token.
  void sort() {
    int32_t* order = pool_.shared.at<int32_t>(order_at_);
    int32_t* token = pool_.shared.at<int32_t>(token_at_);
    int32_t* start = pool_.shared.at<int32_t>(start_at_);
    groups_ = pool_.shared.at<Group>(groups_at_);
    const int64_t slots = c_.tokens * c_.top_k;
    std::fill(start, start + c_.num_experts + 1, 0);
    for (int64_t i = 0; i < slots; ++i)
      if (c_.ids[i] >= 0) ++start[c_.ids[i] + 1];
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      if (start[e + 1] > 0) groups_[num_groups_++] = {&c_.experts[e], start[e], start[e + 1]};
      start[e + 1] += start[e];
    }
    for (int64_t i = 0; i < slots; ++i) {
      if (c_.ids[i] < 0) continue;
      const int32_t at = start[c_.ids[i]]++;
      order[at] = int32_t(i);
      token[at] = int32_t(i / c_.top_k);
    }
  }

  void prepare_inputs() {
    in_base_ = reinterpret_cast<const char*>(c_.x);
    if (num_groups_ == 0 || in_ == Operand::kF32) return;
    char* operands = pool_.shared.at<char>(in_at_);
    in_base_ = operands;
    pool_.each(c_.tokens, [&](int64_t token, int) {
      tier_.prepare(in_, any().up, c_.x + token * c_.hidden, 0, c_.hidden, operands + token * in_stride_);
    });
  }

  int64_t cut(int64_t rows, int64_t step) {
    Piece* pieces = pool_.shared.at<Piece>(pieces_at_);
    int64_t count = 0;
    for (int64_t group = 0; group < num_groups_; ++group)
      for (int64_t begin = 0; begin < rows; begin += step)
        pieces[count++] = {int32_t(group), int32_t(begin), int32_t(std::min(rows, begin + step))};
    return count;
  }

  void gate_and_up() {
    const Piece* pieces = pool_.shared.at<Piece>(pieces_at_);
    pool_.each(cut(c_.intermediate, step_up_), [&](int64_t task, int thread) {
      const Group& group = groups_[pieces[task].group];
      for (int64_t first = 0; first < group.count; first += kTokens)
        gate_and_up(group, first, std::min(group.count - first, kTokens), pieces[task].begin, pieces[task].end, thread);
    });
  }

  // Rows begin to end of both matrices for some of the expert's tokens, as operands of the down matrix.
  void gate_and_up(const Group& group, int64_t first, int64_t tokens, int64_t begin, int64_t end, int thread) {
    char* scratch = pool_.local[thread].at<char>(0);
    float* up = pool_.local[thread].at<float>(size_t(tile_at_));
    float *gate = up + kTokens * step_up_, *mixed = gate + kTokens * step_up_;
    const int64_t at = group.first + first, width = end - begin;
    const int32_t* token = pool_.shared.at<int32_t>(token_at_) + at;
    Rows job{&group.expert->up, in_, in_base_, in_stride_, token, tokens, up, width, begin, nullptr};
    rows_and_bias(tier_, job, begin, end, scratch);
    if (has_gate()) {
      job.matrix = &group.expert->gate;
      job.y = gate;
      rows_and_bias(tier_, job, begin, end, scratch);
    }
    tier_.activate(c_.activation, c_.alpha, c_.limit, has_gate() ? gate : up, up, tokens * width, mixed);
    char* operands = pool_.shared.at<char>(mid_at_);
    for (int64_t t = 0; t < tokens; ++t)
      tier_.prepare(mid_, group.expert->down, mixed + t * width - begin, begin, end, operands + (at + t) * mid_stride_);
  }

  void down() {
    const Piece* pieces = pool_.shared.at<Piece>(pieces_at_);
    const int32_t* order = pool_.shared.at<int32_t>(order_at_);
    pool_.each(cut(c_.hidden, step_down_), [&](int64_t task, int thread) {
      const Piece& piece = pieces[task];
      const Group& group = groups_[piece.group];
      const Rows job{&group.expert->down, mid_, pool_.shared.at<char>(mid_at_) + group.first * mid_stride_, mid_stride_, nullptr,
                     group.count, outputs(), c_.hidden, 0, order + group.first};
      rows_and_bias(tier_, job, piece.begin, piece.end, pool_.local[thread].at<char>(0));
    });
  }

  void sum() {
    const int64_t width = c_.tokens > 1 ? c_.hidden : 512;  // one token: by pieces, for all threads to have some
    const int64_t parts = blocks_of(c_.hidden, width);
    pool_.each(c_.tokens * parts, [&](int64_t task, int) {
      const int64_t token = task / parts, begin = task % parts * width;
      tier_.weighted_sum(outputs() + token * c_.top_k * c_.hidden + begin, c_.hidden, c_.weights + token * c_.top_k, c_.top_k,
                         std::min(width, c_.hidden - begin), c_.y + token * c_.hidden + begin);
    });
  }

  float* outputs() const { return c_.outputs != nullptr ? c_.outputs : pool_.shared.at<float>(outputs_at_); }

  static constexpr int64_t kTokens = 256;  // of one expert at a time, so that a tile's results stay in the second-level cache

  Pool& pool_;
  const Tier& tier_;
  const stoker_moe_call& c_;
  const stoker_expert* any_ = nullptr;
  Operand in_ = Operand::kF32, mid_ = Operand::kF32;
  int64_t in_stride_ = 0, mid_stride_ = 0, step_up_ = 0, step_down_ = 0, tile_at_ = 0;
  int64_t order_at_ = 0, token_at_ = 0, start_at_ = 0, groups_at_ = 0, outputs_at_ = 0, in_at_ = 0, mid_at_ = 0, pieces_at_ = 0;
  const char* in_base_ = nullptr;
  Group* groups_ = nullptr;
  int64_t num_groups_ = 0;
};

}  // namespace

int moe(stoker_pool& p, const stoker_moe_call& call) { return Layer(p, call).run(); }

}  // namespace stoker
