// The C boundary: checks every argument, holds the pool, lets no exception out.
#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <mutex>
#include <new>
#include <system_error>

#include "calls.h"
#include "check.h"

namespace {

constexpr int64_t kMaxTokens = int64_t(1) << 20;
constexpr int64_t kMaxWidth = int64_t(1) << 24;
constexpr int kMaxThreads = 1024;

bool is_size(int64_t value, int64_t most) { return value > 0 && value <= most; }

// Runs `work` with the pool held.
template <class Fn>
int32_t serve(stoker_pool* pool, Fn work) noexcept {
  try {
    std::lock_guard lock(pool->pool.calls);
    return work();
  } catch (const std::bad_alloc&) {
    return STOKER_OUT_OF_MEMORY;
  } catch (...) {
    return STOKER_BAD_OPTION;  // the lock itself failed: only a destroyed pool does that
  }
}

bool alike(const stoker_matrix& a, const stoker_matrix& b) {
  return a.format == b.format && a.scale_type == b.scale_type && a.rows == b.rows && a.cols == b.cols &&
         a.block_rows == b.block_rows && a.block_cols == b.block_cols && a.element_step == b.element_step &&
         (a.zeros == nullptr) == (b.zeros == nullptr);
}

int check_expert(const stoker_moe_call& c, const stoker_expert& expert, const stoker_expert& first) {
  const bool wants_gate = c.activation != STOKER_RELU2;
  if (wants_gate != (expert.gate.data != nullptr)) return wants_gate ? STOKER_NULL_POINTER : STOKER_BAD_SHAPE;
  for (const stoker_matrix* matrix : {&expert.up, &expert.down})
    if (const int status = stoker::check_matrix(*matrix)) return status;
  if (wants_gate)
    if (const int status = stoker::check_matrix(expert.gate)) return status;
  if (expert.up.rows != c.intermediate || expert.up.cols != c.hidden) return STOKER_BAD_SHAPE;
  if (expert.down.rows != c.hidden || expert.down.cols != c.intermediate) return STOKER_BAD_SHAPE;
  if (wants_gate && !alike(expert.gate, expert.up)) return STOKER_BAD_SHAPE;
  return alike(expert.up, first.up) && alike(expert.down, first.down) ? STOKER_OK : STOKER_BAD_SHAPE;
}

int check_moe(const stoker_moe_call& c) {
  if (c.x == nullptr || c.ids == nullptr || c.experts == nullptr) return STOKER_NULL_POINTER;
  if (c.outputs == nullptr && c.y == nullptr) return STOKER_NULL_POINTER;
  if (c.y != nullptr && c.weights == nullptr) return STOKER_NULL_POINTER;
  if (!is_size(c.tokens, kMaxTokens) || !is_size(c.hidden, kMaxWidth) || !is_size(c.intermediate, kMaxWidth))
    return STOKER_BAD_SHAPE;
  if (!is_size(c.top_k, 1024) || !is_size(c.num_experts, int64_t(1) << 24)) return STOKER_BAD_SHAPE;
  if (c.tokens * c.top_k >= int64_t(1) << 31) return STOKER_BAD_SHAPE;
  if (c.activation < STOKER_SILU_GATE || c.activation > STOKER_SILU_GATE_CLAMPED || (c.flags & ~STOKER_FAST) != 0)
    return STOKER_BAD_OPTION;
  const stoker_expert* first = nullptr;
  for (int64_t i = 0; i < c.tokens * c.top_k; ++i) {
    const int32_t id = c.ids[i];
    if (id < -1 || id >= c.num_experts) return STOKER_BAD_INDEX;
    if (id == -1 && c.outputs == nullptr) return STOKER_BAD_INDEX;
    if (id == -1 || (i > 0 && id == c.ids[i - 1])) continue;
    if (first == nullptr) first = &c.experts[id];
    if (const int status = check_expert(c, c.experts[id], *first)) return status;
  }
  return STOKER_OK;
}

bool is_kv_type(int32_t type) { return type == STOKER_F32 || type == STOKER_BF16 || type == STOKER_KV_Q8; }

int check_attention(const stoker_attention_call& c) {
  if (c.q == nullptr || c.keys == nullptr || c.values == nullptr || c.y == nullptr) return STOKER_NULL_POINTER;
  if (!is_size(c.tokens, kMaxTokens) || !is_size(c.length, int64_t(1) << 32) || c.length < c.tokens) return STOKER_BAD_SHAPE;
  if (!is_size(c.heads, 4096) || !is_size(c.kv_heads, c.heads) || c.heads % c.kv_heads != 0) return STOKER_BAD_SHAPE;
  if (!is_size(c.head_dim, 4096) || !is_size(c.value_dim, 4096)) return STOKER_BAD_SHAPE;
  if (!is_kv_type(c.kv_type)) return STOKER_BAD_FORMAT;
  for (int64_t stride : {c.q_token_stride, c.q_head_stride, c.key_head_stride, c.key_token_stride, c.value_head_stride,
                         c.value_token_stride})
    if (stride < 0 || stride > int64_t(1) << 40) return STOKER_BAD_STRIDE;
  if (c.window < 0 || !(c.scale == c.scale) || !(c.softcap >= 0)) return STOKER_BAD_OPTION;
  return STOKER_OK;
}

int check_projection(const stoker_matrix* matrix, int64_t rows, int64_t cols) {
  if (matrix == nullptr) return STOKER_NULL_POINTER;
  if (const int status = stoker::check_matrix(*matrix)) return status;
  return matrix->rows == rows && matrix->cols == cols ? STOKER_OK : STOKER_BAD_SHAPE;
}

int check_block(const stoker_block_call& c) {
  for (const void* pointer : {static_cast<const void*>(c.x), static_cast<const void*>(c.input_norm), static_cast<const void*>(c.post_norm),
                              static_cast<const void*>(c.keys), static_cast<const void*>(c.values), static_cast<const void*>(c.normed)})
    if (pointer == nullptr) return STOKER_NULL_POINTER;
  if (c.rotary_dim > 0 && (c.cosine == nullptr || c.sine == nullptr)) return STOKER_NULL_POINTER;
  if ((c.q_norm == nullptr) != (c.k_norm == nullptr)) return STOKER_NULL_POINTER;
  if (!is_size(c.tokens, kMaxTokens) || !is_size(c.hidden, kMaxWidth)) return STOKER_BAD_SHAPE;
  if (!is_size(c.length, int64_t(1) << 32) || c.length < c.tokens) return STOKER_BAD_SHAPE;
  if (!is_size(c.heads, 4096) || !is_size(c.kv_heads, c.heads) || c.heads % c.kv_heads != 0) return STOKER_BAD_SHAPE;
  if (!is_size(c.head_dim, 4096) || c.rotary_dim < 0 || c.rotary_dim > c.head_dim || c.rotary_dim % 2 != 0) return STOKER_BAD_SHAPE;
  if (!is_kv_type(c.kv_type)) return STOKER_BAD_FORMAT;
  const int64_t row = c.kv_type == STOKER_KV_Q8 ? stoker::q8_row_bytes(c.head_dim) : c.head_dim;
  for (int64_t stride : {c.kv_head_stride, c.kv_token_stride})
    if (stride < row || stride > int64_t(1) << 40) return STOKER_BAD_STRIDE;
  if (c.window < 0 || !(c.scale == c.scale) || !(c.softcap >= 0) || !(c.eps >= 0) || (c.flags & ~STOKER_FAST) != 0)
    return STOKER_BAD_OPTION;
  const int64_t query = c.heads * c.head_dim, key = c.kv_heads * c.head_dim;
  if (const int status = check_projection(c.q, query, c.hidden)) return status;
  if (const int status = check_projection(c.k, key, c.hidden)) return status;
  if (const int status = check_projection(c.v, key, c.hidden)) return status;
  return check_projection(c.o, c.hidden, query);
}

int check_rule(const stoker_delta_call& c) {
  for (const void* pointer : {c.past, c.taps, c.speed, c.bias, c.norm, c.memory, static_cast<const float*>(c.following),
                              static_cast<const float*>(c.kept)})
    if (pointer == nullptr) return STOKER_NULL_POINTER;
  if (!is_size(c.value_heads, 4096) || !is_size(c.key_heads, c.value_heads) || c.value_heads % c.key_heads != 0) return STOKER_BAD_SHAPE;
  if (!is_size(c.key_dim, 4096) || !is_size(c.value_dim, 4096) || !is_size(c.width, 64) || c.width < 2) return STOKER_BAD_SHAPE;
  return c.eps >= 0 ? STOKER_OK : STOKER_BAD_OPTION;
}

int check_delta_block(const stoker_delta_block_call& c) {
  for (const void* pointer : {c.input_norm, c.post_norm, static_cast<const float*>(c.x), static_cast<const float*>(c.normed)})
    if (pointer == nullptr) return STOKER_NULL_POINTER;
  if (const int status = check_rule(c.rule)) return status;
  if (!is_size(c.hidden, kMaxWidth)) return STOKER_BAD_SHAPE;
  if ((c.flags & ~STOKER_FAST) != 0) return STOKER_BAD_OPTION;
  const int64_t heads = c.rule.value_heads, values = heads * c.rule.value_dim;
  const int64_t channels = 2 * c.rule.key_heads * c.rule.key_dim + values;
  const bool is_grouped = c.inputs[2] == nullptr && c.inputs[3] == nullptr;
  const int64_t apart[4] = {channels, values, heads, heads}, grouped[2] = {channels + values, 2 * heads};
  for (int i = 0; i < (is_grouped ? 2 : 4); ++i)
    if (const int status = check_projection(c.inputs[i], is_grouped ? grouped[i] : apart[i], c.hidden)) return status;
  return check_projection(c.out, c.hidden, values);
}

int check_route(const stoker_route_call& c) {
  if (c.x == nullptr || c.router == nullptr || c.ids == nullptr || c.weights == nullptr) return STOKER_NULL_POINTER;
  if (const int status = stoker::check_matrix(*c.router)) return status;
  if (!is_size(c.tokens, kMaxTokens) || !is_size(c.top_k, std::min<int64_t>(1024, c.router->rows))) return STOKER_BAD_SHAPE;
  return (c.flags & ~STOKER_RENORMALISE) == 0 ? STOKER_OK : STOKER_BAD_OPTION;
}

}  // namespace

int32_t stoker_abi_version(void) { return STOKER_ABI_VERSION; }

const char* stoker_error_text(int32_t status) {
  switch (status) {
    case STOKER_OK: return "no error";
    case STOKER_NULL_POINTER: return "a pointer is null";
    case STOKER_BAD_FORMAT: return "unknown weight format or scale type";
    case STOKER_BAD_SHAPE: return "shapes are not positive or do not fit together";
    case STOKER_BAD_BLOCK: return "the scale block does not divide the matrix";
    case STOKER_BAD_STRIDE: return "a stride is shorter than a row";
    case STOKER_SHORT_BUFFER: return "a buffer ends before its matrix";
    case STOKER_BAD_INDEX: return "an expert index is outside the table";
    case STOKER_BAD_OPTION: return "unknown option";
    case STOKER_ISA_UNAVAILABLE: return "this processor lacks the instruction set";
    case STOKER_OUT_OF_MEMORY: return "the system refused memory or a thread";
    case STOKER_BAD_SCALE: return "a scale is no finite number";
    default: return "unknown error";
  }
}

int32_t stoker_isa_available(int32_t isa) { return isa == STOKER_ISA_BEST || stoker::can_run(isa); }

int32_t stoker_pool_create(int32_t threads, int32_t isa, int32_t spin_us, stoker_pool** pool) {
  if (pool == nullptr) return STOKER_NULL_POINTER;
  *pool = nullptr;
  if (threads < 1 || threads > kMaxThreads || spin_us < 0) return STOKER_BAD_OPTION;
  if (isa < STOKER_ISA_BEST || isa > STOKER_ISA_NEON) return STOKER_BAD_OPTION;
  const stoker::Tier* tier = stoker::choose_tier(isa);
  if (tier == nullptr) return STOKER_ISA_UNAVAILABLE;
  try {
    *pool = new stoker_pool{{threads, spin_us}, tier, {}};
  } catch (...) {
    return STOKER_OUT_OF_MEMORY;
  }
  return STOKER_OK;
}

void stoker_pool_destroy(stoker_pool* pool) { delete pool; }

const char* stoker_pool_isa(const stoker_pool* pool) { return pool == nullptr ? "" : pool->tier->name; }

int32_t stoker_check(const stoker_matrix* matrix) {
  return matrix == nullptr ? STOKER_NULL_POINTER : stoker::check_matrix(*matrix);
}

int32_t stoker_check_scales(const stoker_expert* expert) {
  if (expert == nullptr) return STOKER_NULL_POINTER;
  for (const stoker_matrix* matrix : {&expert->gate, &expert->up, &expert->down}) {
    if (matrix == &expert->gate && matrix->data == nullptr) continue;
    if (const int status = stoker::check_matrix(*matrix)) return status;
    if (const int status = stoker::check_numbers(*matrix)) return status;
  }
  return STOKER_OK;
}

int32_t stoker_linear(stoker_pool* pool, const float* x, int64_t tokens, const stoker_matrix* matrix, int32_t flags, float* y) {
  if (pool == nullptr || x == nullptr || matrix == nullptr || y == nullptr) return STOKER_NULL_POINTER;
  if (!is_size(tokens, kMaxTokens)) return STOKER_BAD_SHAPE;
  if ((flags & ~STOKER_FAST) != 0) return STOKER_BAD_OPTION;
  if (const int status = stoker::check_matrix(*matrix)) return status;
  return serve(pool, [&] { return stoker::linear(*pool, x, tokens, *matrix, (flags & STOKER_FAST) != 0, y); });
}

int32_t stoker_moe(stoker_pool* pool, const stoker_moe_call* call) {
  if (pool == nullptr || call == nullptr) return STOKER_NULL_POINTER;
  if (const int status = check_moe(*call)) return status;
  return serve(pool, [&] { return stoker::moe(*pool, *call); });
}

int32_t stoker_attention(stoker_pool* pool, const stoker_attention_call* call) {
  if (pool == nullptr || call == nullptr) return STOKER_NULL_POINTER;
  if (const int status = check_attention(*call)) return status;
  return serve(pool, [&] { return stoker::attention(*pool, *call); });
}

int32_t stoker_attention_block(stoker_pool* pool, const stoker_block_call* call) {
  if (pool == nullptr || call == nullptr) return STOKER_NULL_POINTER;
  if (const int status = check_block(*call)) return status;
  return serve(pool, [&] { return stoker::attention_block(*pool, *call); });
}

int32_t stoker_delta_block(stoker_pool* pool, const stoker_delta_block_call* call) {
  if (pool == nullptr || call == nullptr) return STOKER_NULL_POINTER;
  if (const int status = check_delta_block(*call)) return status;
  return serve(pool, [&] { return stoker::delta_block(*pool, *call); });
}

int32_t stoker_route(stoker_pool* pool, const stoker_route_call* call) {
  if (pool == nullptr || call == nullptr) return STOKER_NULL_POINTER;
  if (const int status = check_route(*call)) return status;
  return serve(pool, [&] { return stoker::route(*pool, *call); });
}

int32_t stoker_read(stoker_pool* pool, const void* data, int64_t bytes, uint64_t* sum) {
  if (pool == nullptr || data == nullptr || sum == nullptr) return STOKER_NULL_POINTER;
  if (bytes <= 0) return STOKER_BAD_SHAPE;
  return serve(pool, [&] {
    constexpr int64_t kPart = 1 << 20;
    std::atomic<uint64_t> total{0};
    pool->pool.each(stoker::blocks_of(bytes, kPart), [&](int64_t part, int) {
      const int64_t begin = part * kPart;
      total += pool->tier->read(static_cast<const char*>(data) + begin, std::min(kPart, bytes - begin));
    });
    *sum = total;
    return int(STOKER_OK);
  });
}
