// The routed experts of one layer: tokens grouped by expert, gate, up and activation in one pass over the threads, down in a
// second, the weighted sum in a third. Every weight byte is read once, and a token's result does not depend on the others.
#include <algorithm>

#include "calls.h"
#include "pieces.h"

namespace stoker {
namespace {

// The assignments of one expert: `count` of them from `first` on in the sorted order.
struct Group {
  const stoker_expert* expert;
  int64_t first, count;
};

// Gate and up as one matrix of twice the rows where their rows alternate: read apart, each would fetch the other's lines too.
// False where they do not. Whatever scales and biases they have must alternate with them.
bool interleaved(const stoker_expert& expert, stoker_matrix& both) {
  const stoker_matrix &gate = expert.gate, &up = expert.up;
  const auto alternate = [](const void* first, const void* second, int64_t stride) {
    return first == nullptr ? second == nullptr : stride % 2 == 0 && static_cast<const char*>(first) + stride / 2 == second;
  };
  const bool by_columns = gate.element_step == 2;
  const int64_t apart = by_columns ? 2 * (gate.format == STOKER_F32 ? 4 : 2) : gate.row_stride;
  if (gate.data == nullptr || (gate.element_step != 0 && !by_columns) || gate.zeros != nullptr || gate.block_rows > 1 ||
      gate.format >= STOKER_INT4_GPTQ || gate.global_scale != up.global_scale)
    return false;
  if (!alternate(gate.data, up.data, apart) || !alternate(gate.scales, up.scales, gate.scale_row_stride) ||
      !alternate(gate.bias, up.bias, gate.bias_stride))
    return false;
  both = gate;
  both.rows *= 2;
  if (by_columns) both.element_step = 1;
  else both.row_stride /= 2;
  both.scale_row_stride /= 2;
  both.bias_stride /= 2;
  return true;
}

class Layer {
 public:
  Layer(stoker_pool& p, const stoker_moe_call& call) : pool_(p.pool), tier_(*p.tier), c_(call) {}

  int run() {
    if (const int status = reserve()) return status;
    sort();
    if (const int status = reserve_pieces()) return status;
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
    groups_at_ = layout.take((c_.tokens == 1 ? slots : std::min(slots, c_.num_experts)) * int64_t(sizeof(Group)));
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
    }
    return pool_.shared.reserve(size_t(layout.end)) ? STOKER_OK : STOKER_OUT_OF_MEMORY;
  }

  // What depends on how many experts the tokens meet.
  int reserve_pieces() {
    if (num_groups_ == 0) return STOKER_OK;
    stoker_matrix both;
    up_bytes_ = interleaved(any(), both) ? 2 * row_bytes(both) : row_bytes(any().up) * (has_gate() ? 2 : 1);
    down_bytes_ = row_bytes(any().down);
    const Pieces ups = cutter(c_.intermediate, up_bytes_), downs = cutter(c_.hidden, down_bytes_);
    tile_at_ = align64(std::max(tier_.scratch_bytes(any().up), tier_.scratch_bytes(any().down)));
    tile_floats_ = std::min(kTokens, num_assigned_) * std::min(ups.most_rows(up_bytes_), c_.intermediate);
    const int64_t local = align64(tile_at_ + 4 * tile_floats_ * 4);
    const int64_t most = std::max(ups.most_pieces(num_groups_, c_.intermediate, up_bytes_),
                                  downs.most_pieces(num_groups_, c_.hidden, down_bytes_));
    for (int thread = 0; thread < pool_.threads(); ++thread)
      if (!pool_.local[thread].reserve(size_t(local + (thread == 0 ? most * int64_t(sizeof(Piece)) : 0))))
        return STOKER_OUT_OF_MEMORY;
    pieces_ = pool_.local[0].at<Piece>(size_t(local));
    return STOKER_OK;
  }

  // Counting sort of the assignments by expert; within one, by token.
  void sort() {
    int32_t* order = pool_.shared.at<int32_t>(order_at_);
    int32_t* token = pool_.shared.at<int32_t>(token_at_);
    int32_t* start = pool_.shared.at<int32_t>(start_at_);
    groups_ = pool_.shared.at<Group>(groups_at_);
    const int64_t slots = c_.tokens * c_.top_k;
    if (c_.tokens == 1) {  // as they come: one that is named twice is computed twice
      for (int64_t i = 0; i < slots; ++i) {
        if (c_.ids[i] < 0) continue;
        order[num_assigned_] = int32_t(i);
        token[num_assigned_] = 0;
        groups_[num_groups_++] = {&c_.experts[c_.ids[i]], num_assigned_++, 1};
      }
      return;
    }
    std::fill(start, start + c_.num_experts + 1, 0);
    for (int64_t i = 0; i < slots; ++i)
      if (c_.ids[i] >= 0) ++start[c_.ids[i] + 1];
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      if (start[e + 1] > 0) groups_[num_groups_++] = {&c_.experts[e], start[e], start[e + 1]};
      start[e + 1] += start[e];
    }
    num_assigned_ = start[c_.num_experts];
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

  Pieces cutter(int64_t rows, int64_t row) const {
    const int64_t together = std::max(task_rows(any().up), task_rows(any().down));
    return Pieces(num_groups_ * rows * row, blocks_of(num_assigned_, num_groups_), together, pool_.threads());
  }

  int64_t cut(int64_t rows, int64_t row) {
    if (num_groups_ == 0) return 0;
    Pieces pieces = cutter(rows, row);
    for (int64_t group = 0; group < num_groups_; ++group) pieces.cut(int32_t(group), rows, row, pieces_);
    return pieces.count;
  }

  void gate_and_up() {
    const Piece* pieces = pieces_;
    pool_.each(cut(c_.intermediate, up_bytes_), [&](int64_t task, int thread) {
      const Group& group = groups_[pieces[task].group];
      for (int64_t first = 0; first < group.count; first += kTokens)
        gate_and_up(group, first, std::min(group.count - first, kTokens), pieces[task].begin, pieces[task].end, thread);
    });
  }

  // Rows begin to end of both matrices for some of the expert's tokens, as operands of the down matrix.
  void gate_and_up(const Group& group, int64_t first, int64_t tokens, int64_t begin, int64_t end, int thread) {
    char* scratch = pool_.local[thread].at<char>(0);
    float* up = pool_.local[thread].at<float>(size_t(tile_at_));
    float *gate = up + tile_floats_, *mixed = gate + tile_floats_;
    const int64_t at = group.first + first, width = end - begin;
    const int32_t* token = pool_.shared.at<int32_t>(token_at_) + at;
    const int64_t after = pool_.upcoming(thread);
    const stoker_expert* then = after < 0 ? nullptr : groups_[pieces_[after].group].expert;
    const int64_t then_row = after < 0 ? 0 : pieces_[after].begin;
    Rows job{&group.expert->up, in_, in_base_, in_stride_, token, tokens, up, width, begin, nullptr};
    stoker_matrix both, both_then;
    if (interleaved(*group.expert, both)) {
      job.matrix = &both;
      job.y = mixed;  // [tokens, width, 2]
      job.y_stride = 2 * width;
      job.y_first = 2 * begin;
      if (then != nullptr && interleaved(*then, both_then)) {
        job.next = &both_then;
        job.next_row = 2 * then_row;
      }
      rows_and_bias(tier_, job, 2 * begin, 2 * end, scratch);
      for (int64_t i = 0; i < tokens * width; ++i) {
        gate[i] = mixed[2 * i];
        up[i] = mixed[2 * i + 1];
      }
    } else {
      job.next = has_gate() ? &group.expert->gate : then == nullptr ? nullptr : &then->up;
      job.next_row = has_gate() ? begin : then_row;
      rows_and_bias(tier_, job, begin, end, scratch);
      if (has_gate()) {
        job.next = then == nullptr ? nullptr : &then->up;
        job.next_row = then_row;
        job.matrix = &group.expert->gate;
        job.y = gate;
        rows_and_bias(tier_, job, begin, end, scratch);
      }
    }
    tier_.activate(c_.activation, c_.alpha, c_.limit, has_gate() ? gate : up, up, tokens * width, mixed);
    char* operands = pool_.shared.at<char>(mid_at_);
    for (int64_t t = 0; t < tokens; ++t)
      tier_.prepare(mid_, group.expert->down, mixed + t * width - begin, begin, end, operands + (at + t) * mid_stride_);
  }

  void down() {
    const Piece* pieces = pieces_;
    const int32_t* order = pool_.shared.at<int32_t>(order_at_);
    pool_.each(cut(c_.hidden, down_bytes_), [&](int64_t task, int thread) {
      const Piece& piece = pieces[task];
      const Group& group = groups_[piece.group];
      const int64_t after = pool_.upcoming(thread);
      const Rows job{&group.expert->down, mid_, pool_.shared.at<char>(mid_at_) + group.first * mid_stride_, mid_stride_, nullptr,
                     group.count, outputs(), c_.hidden, 0, order + group.first,
                     after < 0 ? nullptr : &groups_[pieces_[after].group].expert->down, after < 0 ? 0 : pieces_[after].begin};
      rows_and_bias(tier_, job, piece.begin, piece.end, pool_.local[thread].at<char>(0));
    });
  }

  void sum() {
    pool_.each(c_.tokens, [&](int64_t token, int) {
      tier_.weighted_sum(outputs() + token * c_.top_k * c_.hidden, c_.hidden, c_.weights + token * c_.top_k, c_.top_k, c_.hidden,
                         c_.y + token * c_.hidden);
    });
  }

  float* outputs() const { return c_.outputs != nullptr ? c_.outputs : pool_.shared.at<float>(outputs_at_); }

  static constexpr int64_t kTokens = 256;  // of one expert at a time, so that a tile's results stay in the second-level cache

  Pool& pool_;
  const Tier& tier_;
  const stoker_moe_call& c_;
  const stoker_expert* any_ = nullptr;
  Operand in_ = Operand::kF32, mid_ = Operand::kF32;
  int64_t in_stride_ = 0, mid_stride_ = 0, up_bytes_ = 0, down_bytes_ = 0, tile_at_ = 0, tile_floats_ = 0;
  int64_t order_at_ = 0, token_at_ = 0, start_at_ = 0, groups_at_ = 0, outputs_at_ = 0, in_at_ = 0, mid_at_ = 0;
  const char* in_base_ = nullptr;
  Group* groups_ = nullptr;
  int64_t num_groups_ = 0, num_assigned_ = 0;
  Piece* pieces_ = nullptr;
};

}  // namespace

int moe(stoker_pool& p, const stoker_moe_call& call) { return Layer(p, call).run(); }

}  // namespace stoker
