// The attention half of a layer in one call: norm, projections, rotary positions, cache, attention, output, residual sum, norm.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "calls.h"
#include "pieces.h"
#include "scalar.h"

namespace stoker {
namespace {

class Block {
 public:
  Block(stoker_pool& p, const stoker_block_call& call)
      : p_(p), pool_(p.pool), tier_(*p.tier), c_(call), q_width_(c_.heads * c_.head_dim), kv_width_(c_.kv_heads * c_.head_dim),
        width_(q_width_ + 2 * kv_width_), matrices_{c_.q, c_.k, c_.v} {}

  int run() {
    if (const int status = reserve()) return status;
    norm_and_prepare();
    project();
    turn_and_keep();
    if (const int status = attention(p_, attention_call())) return status;
    if (const int status = linear(p_, mixed(), c_.tokens, *c_.o, is_fast(), c_.normed)) return status;
    pool_.each(c_.tokens, [&](int64_t token, int) {
      float *x = c_.x + token * c_.hidden, *normed = c_.normed + token * c_.hidden;
      tier_.add_to(x, normed, c_.hidden);
      tier_.rms_norm(x, c_.post_norm, c_.hidden, c_.eps, normed);
    });
    return STOKER_OK;
  }

 private:
  bool is_fast() const { return (c_.flags & STOKER_FAST) != 0; }
  Operand kind_of(const stoker_matrix& m) const { return tier_.operand(m, c_.tokens, is_fast()); }

  // Matrices of one format read the same operand.
  static bool share(const stoker_matrix& a, const stoker_matrix& b) {
    return a.format == b.format && (a.zeros == nullptr) == (b.zeros == nullptr);
  }

  int reserve() {
    Layout layout;
    int64_t scratch = tier_.attend_bytes(attention_call()), pieces = 0;
    for (int i = 0; i < 3; ++i) {
      const stoker_matrix& m = *matrices_[i];
      stride_[i] = kind_of(m) == Operand::kF32 ? c_.hidden * 4 : operand_bytes(kind_of(m), c_.hidden);
      source_[i] = i;
      for (int j = i - 1; j >= 0; --j)
        if (share(m, *matrices_[j])) source_[i] = j;
      if (source_[i] == i && kind_of(m) != Operand::kF32) operand_at_[i] = layout.take(c_.tokens * stride_[i]);
      scratch = std::max(scratch, tier_.scratch_bytes(m));
      pieces += cutter(0).most_pieces(1, m.rows, row_bytes(m));
    }
    projected_at_ = layout.take(c_.tokens * width_ * 4);
    pieces_at_ = layout.take(pieces * int64_t(sizeof(Piece)));
    for (int thread = 0; thread < pool_.threads(); ++thread)
      if (!pool_.local[thread].reserve(size_t(scratch))) return STOKER_OUT_OF_MEMORY;
    if (!p_.between.reserve(size_t(c_.tokens * q_width_ * 4))) return STOKER_OUT_OF_MEMORY;
    return pool_.shared.reserve(size_t(layout.end)) ? STOKER_OK : STOKER_OUT_OF_MEMORY;
  }

  Pieces cutter(int64_t bytes) const {
    int64_t together = kTaskRows;
    for (const stoker_matrix* m : matrices_) together = std::max(together, task_rows(*m));
    return Pieces(bytes, c_.tokens, together, pool_.threads());
  }

  void norm_and_prepare() {
    pool_.each(c_.tokens, [&](int64_t token, int) {
      float* normed = c_.normed + token * c_.hidden;
      tier_.rms_norm(c_.x + token * c_.hidden, c_.input_norm, c_.hidden, c_.eps, normed);
      for (int i = 0; i < 3; ++i)
        if (source_[i] == i && kind_of(*matrices_[i]) != Operand::kF32)
          tier_.prepare(kind_of(*matrices_[i]), *matrices_[i], normed, 0, c_.hidden,
                        pool_.shared.at<char>(size_t(operand_at_[i] + token * stride_[i])));
    });
  }

  void project() {
    Piece* pieces = pool_.shared.at<Piece>(size_t(pieces_at_));
    int64_t bytes = 0;
    for (const stoker_matrix* m : matrices_) bytes += m->rows * row_bytes(*m);
    Pieces cut = cutter(bytes);
    Rows jobs[3];
    float* y = projected();
    for (int i = 0; i < 3; ++i) {
      const stoker_matrix& m = *matrices_[i];
      const char* x = kind_of(m) == Operand::kF32 ? reinterpret_cast<const char*>(c_.normed)
                                                  : pool_.shared.at<char>(size_t(operand_at_[source_[i]]));
      jobs[i] = {&m, kind_of(m), x, stride_[i], nullptr, c_.tokens, y, width_, 0, nullptr, nullptr, 0};
      cut.cut(i, m.rows, row_bytes(m), pieces);
      y += m.rows;
    }
    pool_.each(cut.count, [&](int64_t task, int thread) {
      Rows job = jobs[pieces[task].group];
      const int64_t after = pool_.upcoming(thread);
      if (after >= 0 && share(*job.matrix, *matrices_[pieces[after].group])) {
        job.next = matrices_[pieces[after].group];
        job.next_row = pieces[after].begin;
      }
      rows_and_bias(tier_, job, pieces[task].begin, pieces[task].end, pool_.local[thread].at<char>(0));
    });
  }

  void turn_and_keep() {
    const int64_t start = c_.length - c_.tokens, half = c_.rotary_dim / 2;
    pool_.each(c_.tokens, [&](int64_t token, int) {
      float *q = projected() + token * width_, *k = q + q_width_, *v = k + kv_width_;
      const float *cosine = c_.cosine + token * half, *sine = c_.sine + token * half;
      for (float* head = q; head < v; head += c_.head_dim) {
        if (c_.q_norm != nullptr) tier_.rms_norm(head, head < k ? c_.q_norm : c_.k_norm, c_.head_dim, c_.eps, head);
        tier_.rotate(head, cosine, sine, half);
      }
      for (int64_t head = 0; head < c_.kv_heads; ++head) {
        const int64_t at = head * c_.kv_head_stride + (start + token) * c_.kv_token_stride;
        keep(k + head * c_.head_dim, c_.keys, at);
        keep(v + head * c_.head_dim, c_.values, at);
      }
    });
  }

  void keep(const float* from, void* cache, int64_t at) const {
    if (c_.kv_type == STOKER_F32) {
      memcpy(static_cast<char*>(cache) + at * 4, from, size_t(c_.head_dim) * 4);
    } else if (c_.kv_type == STOKER_BF16) {
      char* to = static_cast<char*>(cache) + at * 2;
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        const uint16_t bits = to_bf16(from[d]);
        memcpy(to + d * 2, &bits, 2);
      }
    } else {
      char* to = static_cast<char*>(cache) + at;
      for (int64_t d = 0; d < c_.head_dim; d += kRowBlock) to = keep_block(from + d, std::min(kRowBlock, c_.head_dim - d), to);
    }
  }

  static char* keep_block(const float* from, int64_t count, char* to) {
    float most = 0;
    for (int64_t d = 0; d < count; ++d) most = std::max(most, std::fabs(from[d]));
    const uint16_t bits = above_bf16(most / 127);
    const float scale = from_bf16(bits), inverse = scale > 0 ? 1 / scale : 0;
    memcpy(to, &bits, kRowScale);
    to += kRowScale;
    for (int64_t d = 0; d < count; ++d) {
      const float code = from[d] * inverse;
      to[d] = code > -127.5f && code < 127.5f ? char(int8_t(std::nearbyint(code))) : char(0);  // what is no number has such a scale
    }
    return to + count;
  }

  // The least bf16 that is not below, so that no code is beyond 127. Below its normal numbers is nothing: 1 / scale stays finite.
  static uint16_t above_bf16(float value) {
    return value < 1e-37f ? 0 : uint16_t((to_bits(value) + 0xffff) >> 16);
  }

  stoker_attention_call attention_call() const {
    stoker_attention_call call = {};
    call.tokens = c_.tokens;
    call.length = c_.length;
    call.heads = c_.heads;
    call.kv_heads = c_.kv_heads;
    call.head_dim = call.value_dim = c_.head_dim;
    call.q = projected();
    call.q_token_stride = width_;
    call.q_head_stride = c_.head_dim;
    call.keys = c_.keys;
    call.values = c_.values;
    call.key_head_stride = call.value_head_stride = c_.kv_head_stride;
    call.key_token_stride = call.value_token_stride = c_.kv_token_stride;
    call.kv_type = c_.kv_type;
    call.window = c_.window;
    call.scale = c_.scale;
    call.softcap = c_.softcap;
    call.sinks = c_.sinks;
    call.y = mixed();
    return call;
  }

  float* projected() const { return pool_.shared.at<float>(size_t(projected_at_)); }
  float* mixed() const { return p_.between.at<float>(0); }  // apart, since `linear` takes the shared memory for itself

  stoker_pool& p_;
  Pool& pool_;
  const Tier& tier_;
  const stoker_block_call& c_;
  const int64_t q_width_, kv_width_, width_;
  const stoker_matrix* matrices_[3];
  int source_[3] = {};  // whose operand each matrix reads
  int64_t stride_[3] = {}, operand_at_[3] = {};
  int64_t projected_at_ = 0, pieces_at_ = 0;
};

}  // namespace

int attention_block(stoker_pool& p, const stoker_block_call& call) { return Block(p, call).run(); }

}  // namespace stoker
