// Random calls over heap buffers of exactly the size that a matrix needs, so that one byte too many is caught; and random
// nonsense, which must be refused. Usage: fuzz_kernels SECONDS [SEED]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "stoker_kernels.h"

namespace {

std::mt19937_64 draw;

int64_t below(int64_t count) { return int64_t(draw() % uint64_t(count)); }
int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
bool chance(int percent) { return below(100) < percent; }

// Bytes that end with the allocation and begin at any address.
struct Buffer {
  std::unique_ptr<uint8_t[]> memory;
  uint8_t* data = nullptr;
  int64_t size = 0;
  void make(int64_t bytes, int highest = 256) {
    const int64_t shift = below(64);
    memory.reset(new uint8_t[size_t(bytes + shift)]);
    data = memory.get() + shift;
    size = bytes;
    for (int64_t i = 0; i < bytes; ++i) data[i] = uint8_t(below(highest));
  }
};

struct Made {
  stoker_matrix m{};
  Buffer data, scales, zeros, bias;
};

int scale_size(int type) { return type == STOKER_SCALE_F32 ? 4 : type == STOKER_SCALE_BF16 || type == STOKER_SCALE_F16 ? 2 : 1; }

// A valid matrix of any format. rows and cols are rounded to what the format has.
void make(Made& out, int format, int64_t rows, int64_t cols) {
  stoker_matrix& m = out.m;
  m = {};
  m.format = format;
  m.global_scale = 1.0f;
  const bool by_columns = format >= STOKER_INT4_GPTQ;
  if (format >= STOKER_E2M1) {
    const int64_t block = format != STOKER_INT4_AWQ && format != STOKER_INT4_GPTQ && chance(30) ? 16 : 32 * between(1, 4);
    cols = (cols + block - 1) / block * block;
    m.block_rows = 1;
    m.block_cols = block;
    if (by_columns) rows = (rows + 7) / 8 * 8;
  } else if (format == STOKER_E4M3) {
    m.block_rows = between(1, 140);
    m.block_cols = between(1, 140);
  }
  m.rows = rows;
  m.cols = cols;
  int64_t row_bytes = format == STOKER_F32 ? cols * 4 : format <= STOKER_BF16 ? cols * 2 : format == STOKER_E4M3 ? cols : cols / 2;
  int64_t lines = rows;
  if (format == STOKER_INT4_GPTQ) row_bytes = rows * 4, lines = cols / 8;
  if (format == STOKER_INT4_AWQ) row_bytes = rows / 2, lines = cols;
  m.row_stride = row_bytes + (chance(30) ? below(40) : 0);
  out.data.make((lines - 1) * m.row_stride + row_bytes);
  m.data = out.data.data;
  m.data_bytes = out.data.size;
  if (format >= STOKER_E4M3) {
    m.scale_type = int32_t(between(STOKER_SCALE_F32, STOKER_SCALE_E4M3));
    const int64_t size = scale_size(m.scale_type), groups = (cols + m.block_cols - 1) / m.block_cols;
    const int64_t tall = (rows + m.block_rows - 1) / m.block_rows;
    m.scale_col_stride = by_columns ? rows * size : size;
    m.scale_row_stride = by_columns ? size : groups * size + (chance(30) ? below(9) : 0);
    out.scales.make((tall - 1) * m.scale_row_stride + (groups - 1) * m.scale_col_stride + size, 120);
    m.scales = out.scales.data;
    m.scale_bytes = out.scales.size;
    if (format >= STOKER_INT4 && m.block_cols % 32 == 0 && (by_columns || chance(50))) {
      const int64_t words = (rows + 7) / 8;
      m.zero_stride = (by_columns ? words : groups) * 4;
      out.zeros.make((by_columns ? groups : words) * m.zero_stride);
      m.zeros = out.zeros.data;
      m.zero_bytes = out.zeros.size;
      m.zero_offset = int32_t(below(2));
    }
  }
  if (format <= STOKER_BF16 && chance(40)) {  // the same by columns
    const int64_t size = format == STOKER_F32 ? 4 : 2;
    m.element_step = int32_t(between(1, 3));
    row_bytes = ((rows - 1) * m.element_step + 1) * size;
    m.row_stride = row_bytes + (chance(30) ? below(40) : 0);
    out.data.make((cols - 1) * m.row_stride + row_bytes);
    m.data = out.data.data;
    m.data_bytes = out.data.size;
  }
  if (chance(40)) {
    m.bias_type = int32_t(between(STOKER_SCALE_F32, STOKER_SCALE_F16));
    m.bias_stride = scale_size(m.bias_type) * between(1, 2);
    out.bias.make((rows - 1) * m.bias_stride + scale_size(m.bias_type), 60);
    m.bias = out.bias.data;
  }
}

std::vector<float> floats(int64_t count) {
  std::vector<float> out{};
  out.resize(size_t(count));
  for (float& value : out) value = float(below(2001) - 1000) / 500.0f;
  return out;
}

void must(int32_t status, const char* what) {
  if (status == STOKER_OK) return;
  std::printf("%s refused a valid call: %s\n", what, stoker_error_text(status));
  std::exit(1);
}

void linear(stoker_pool* pool) {
  Made w;
  make(w, int(below(8)), between(1, 80), between(1, 400));
  const int64_t tokens = chance(70) ? between(1, 9) : between(1, 70);
  const std::vector<float> x = floats(tokens * w.m.cols);
  std::vector<float> y(size_t(tokens * w.m.rows));
  must(stoker_linear(pool, x.data(), tokens, &w.m, int32_t(below(2)), y.data()), "linear");
}

void moe(stoker_pool* pool) {
  const int format = int(below(8));
  const int64_t experts = between(1, 6), top_k = between(1, experts), tokens = between(1, 20);
  const int64_t hidden = 32 * between(1, 8), wide = 32 * between(1, 6);
  stoker_moe_call call{};
  call.activation = int32_t(below(5));
  std::vector<Made> parts(size_t(experts * 3));
  std::vector<stoker_expert> table(static_cast<size_t>(experts));
  const uint64_t seed = draw();
  for (int64_t e = 0; e < experts; ++e) {
    for (int part = 0; part < 3; ++part) {
      draw.seed(seed + uint64_t(part == 0 ? 1 : part));  // alike in block and scale type
      Made& made = parts[size_t(e * 3 + part)];
      made.m = {};
      do make(made, format, part == 2 ? hidden : wide, part == 2 ? wide : hidden);
      while (made.m.cols != (part == 2 ? wide : hidden));
    }
    if (call.activation != STOKER_RELU2) table[size_t(e)].gate = parts[size_t(e * 3)].m;
    table[size_t(e)].up = parts[size_t(e * 3 + 1)].m;
    table[size_t(e)].down = parts[size_t(e * 3 + 2)].m;
  }
  draw.seed(seed + 99);
  std::vector<int32_t> ids(size_t(tokens * top_k));
  const bool partial = chance(50);
  for (int32_t& id : ids) id = partial && chance(30) ? -1 : int32_t(below(experts));
  const std::vector<float> x = floats(tokens * hidden), weights = floats(tokens * top_k);
  std::vector<float> outputs(size_t(tokens * top_k * hidden)), y(size_t(tokens * hidden));
  call.tokens = tokens;
  call.hidden = hidden;
  call.intermediate = wide;
  call.top_k = top_k;
  call.x = x.data();
  call.ids = ids.data();
  call.experts = table.data();
  call.num_experts = experts;
  call.flags = int32_t(below(2));
  call.alpha = 1.702f;
  call.limit = 7.0f;
  call.weights = weights.data();
  call.outputs = partial || chance(50) ? outputs.data() : nullptr;
  call.y = chance(70) || call.outputs == nullptr ? y.data() : nullptr;
  must(stoker_moe(pool, &call), "moe");
}

// How a cache keeps its numbers, and what its strides count.
struct Kept {
  int type;
  int64_t size;
  int64_t row(int64_t dim) const { return type == STOKER_KV_Q8 ? dim + (dim + 31) / 32 * 2 : dim; }
};

Kept any_kept() {
  const Kept kinds[] = {{STOKER_F32, 4}, {STOKER_BF16, 2}, {STOKER_KV_Q8, 1}};
  return kinds[below(3)];
}

void attention(stoker_pool* pool) {
  stoker_attention_call c{};
  c.kv_heads = between(1, 3);
  c.heads = c.kv_heads * between(1, 5);
  c.tokens = between(1, 40);
  c.length = c.tokens + below(200);
  c.head_dim = between(1, 70);
  c.value_dim = between(1, 70);
  const Kept kept = any_kept();
  c.kv_type = kept.type;
  const std::vector<float> q = floats(c.tokens * c.heads * c.head_dim), sinks = floats(c.heads);
  Buffer keys, values;
  const int64_t key_row = kept.row(c.head_dim), value_row = kept.row(c.value_dim);
  keys.make(c.kv_heads * c.length * key_row * kept.size, 60);
  values.make(c.kv_heads * c.length * value_row * kept.size, 60);
  std::vector<float> y(size_t(c.tokens * c.heads * c.value_dim));
  c.q = q.data();
  c.q_head_stride = c.head_dim;
  c.q_token_stride = c.heads * c.head_dim;
  c.keys = keys.data;
  c.values = values.data;
  c.key_token_stride = key_row;
  c.key_head_stride = c.length * key_row;
  c.value_token_stride = value_row;
  c.value_head_stride = c.length * value_row;
  c.window = chance(50) ? between(1, 100) : 0;
  c.scale = 0.2f;
  c.softcap = chance(30) ? 3.0f : 0.0f;
  c.sinks = chance(50) ? sinks.data() : nullptr;
  c.y = y.data();
  must(stoker_attention(pool, &c), "attention");
}

// A matrix of any format that has this many rows and columns.
void make_sized(Made& out, int64_t rows, int64_t cols) {
  do make(out, int(below(8)), rows, cols);
  while (out.m.rows != rows || out.m.cols != cols);
}

void block(stoker_pool* pool) {
  stoker_block_call c{};
  c.kv_heads = between(1, 3);
  c.heads = c.kv_heads * between(1, 4);
  c.head_dim = chance(50) ? 16 * between(1, 4) : between(1, 40);
  c.rotary_dim = 2 * below(c.head_dim / 2 + 1);
  c.hidden = chance(50) ? 32 * between(1, 6) : between(1, 150);
  c.tokens = chance(60) ? between(1, 5) : between(1, 40);
  c.length = c.tokens + below(100);
  const int64_t width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  Made q, k, v, o;
  make_sized(q, width, c.hidden);
  make_sized(k, kv_width, c.hidden);
  make_sized(v, kv_width, c.hidden);
  make_sized(o, c.hidden, width);
  std::vector<float> x = floats(c.tokens * c.hidden), normed(x.size());
  const std::vector<float> norm = floats(c.hidden), head_norm = floats(c.head_dim), sinks = floats(c.heads);
  const std::vector<float> turn = floats(c.tokens * c.rotary_dim / 2);
  const Kept kept = any_kept();
  c.kv_type = kept.type;
  c.kv_token_stride = kept.row(c.head_dim) + below(9);
  c.kv_head_stride = c.length * c.kv_token_stride;
  const int64_t cache = ((c.kv_heads - 1) * c.kv_head_stride + (c.length - 1) * c.kv_token_stride + kept.row(c.head_dim)) * kept.size;
  Buffer keys, values;
  keys.make(cache, 60);
  values.make(cache, 60);
  c.x = x.data();
  c.input_norm = c.post_norm = norm.data();
  c.q_norm = c.k_norm = chance(50) ? head_norm.data() : nullptr;
  c.cosine = c.sine = turn.data();
  c.q = &q.m;
  c.k = &k.m;
  c.v = &v.m;
  c.o = &o.m;
  c.keys = keys.data;
  c.values = values.data;
  c.flags = int32_t(below(2));
  c.window = chance(50) ? between(1, 60) : 0;
  c.eps = 1e-5f;
  c.scale = 0.2f;
  c.softcap = chance(30) ? 3.0f : 0.0f;
  c.sinks = chance(50) ? sinks.data() : nullptr;
  c.normed = normed.data();
  must(stoker_attention_block(pool, &c), "attention block");
}

void route(stoker_pool* pool) {
  Made router;
  make(router, int(below(8)), between(1, 140), between(1, 200));
  stoker_route_call c{};
  c.tokens = between(1, 20);
  c.top_k = between(1, router.m.rows < 12 ? router.m.rows : 12);
  const std::vector<float> x = floats(c.tokens * router.m.cols);
  std::vector<int32_t> ids(size_t(c.tokens * c.top_k));
  std::vector<float> weights(ids.size());
  c.x = x.data();
  c.router = &router.m;
  c.flags = chance(50) ? STOKER_RENORMALISE : 0;
  c.ids = ids.data();
  c.weights = weights.data();
  must(stoker_route(pool, &c), "route");
  for (int32_t id : ids)
    if (id < 0 || id >= router.m.rows) must(STOKER_BAD_INDEX, "route's answer");
}

void delta(stoker_pool* pool) {
  stoker_delta_block_call c{};
  stoker_delta_call& rule = c.rule;
  rule.key_heads = between(1, 4);
  rule.value_heads = rule.key_heads * between(1, 3);
  rule.key_dim = between(1, 5) * 8;
  rule.value_dim = between(1, 16) * 8;
  rule.width = between(2, 5);
  c.hidden = 32 * between(1, 3);
  const int64_t heads = rule.value_heads, values = heads * rule.value_dim, channels = 2 * rule.key_heads * rule.key_dim + values;
  const bool is_grouped = chance(50);
  const int64_t rows[4] = {is_grouped ? channels + values : channels, is_grouped ? 2 * heads : values, heads, heads};
  Made inputs[4], out;
  for (int i = 0; i < (is_grouped ? 2 : 4); ++i) {
    make(inputs[i], int(below(4)), rows[i], c.hidden);
    c.inputs[i] = &inputs[i].m;
  }
  make(out, int(below(4)), c.hidden, values);
  c.out = &out.m;
  const std::vector<float> past = floats((rule.width - 1) * channels), taps = floats(rule.width * channels), by_head = floats(2 * heads),
                           norm = floats(rule.value_dim), memory = floats(values * rule.key_dim), norms = floats(2 * c.hidden);
  std::vector<float> following(past.size()), kept(memory.size()), x = floats(c.hidden), normed(x.size());
  rule.past = past.data();
  rule.taps = taps.data();
  rule.speed = by_head.data();
  rule.bias = rule.speed + heads;
  rule.norm = norm.data();
  rule.memory = memory.data();
  rule.following = following.data();
  rule.kept = kept.data();
  rule.eps = 1e-5f;
  c.x = x.data();
  c.input_norm = norms.data();
  c.post_norm = c.input_norm + c.hidden;
  c.normed = normed.data();
  c.flags = int32_t(below(2));
  must(stoker_delta_block(pool, &c), "delta block");
}

void scales() {
  Made parts[3];
  for (Made& made : parts) make(made, int(below(8)), between(1, 80), between(1, 300));
  const stoker_expert expert{chance(80) ? parts[0].m : stoker_matrix{}, parts[1].m, parts[2].m};
  const int32_t status = stoker_check_scales(&expert);
  if (status != STOKER_BAD_SCALE) must(status, "scales");
}

// One field of a valid matrix turned into nonsense: refused, or still within its buffers.
void nonsense(stoker_pool* pool) {
  Made w;
  make(w, int(below(8)), between(1, 40), between(1, 200));
  int64_t* const sizes[] = {&w.m.rows, &w.m.cols, &w.m.row_stride, &w.m.data_bytes, &w.m.scale_bytes, &w.m.scale_row_stride,
                            &w.m.scale_col_stride, &w.m.block_rows, &w.m.block_cols, &w.m.zero_bytes, &w.m.zero_stride};
  const int64_t values[] = {0, -1, 1, 3, 7, 8, 1 << 20, int64_t(1) << 35, int64_t(1) << 62, INT64_MIN, INT64_MAX, below(300)};
  const int64_t field = below(14);
  const int64_t value = values[below(12)];
  if (field < 11) {
    const bool owned = sizes[field] == &w.m.data_bytes || sizes[field] == &w.m.scale_bytes || sizes[field] == &w.m.zero_bytes;
    if (owned && value > *sizes[field]) return;  // a caller that lies about its own memory cannot be helped
    *sizes[field] = value;
  }
  if (field == 11) w.m.format = int32_t(value);
  if (field == 12) w.m.scale_type = int32_t(value);
  if (field == 13) w.m.element_step = int32_t(value);
  if (stoker_check(&w.m) != STOKER_OK || w.m.rows > 4096 || w.m.cols > 4096) return;
  w.m.bias = nullptr;
  const std::vector<float> x = floats(2 * w.m.cols);
  std::vector<float> y(size_t(2 * w.m.rows));
  must(stoker_linear(pool, x.data(), 2, &w.m, 0, y.data()), "linear after check");
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  draw.seed(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  std::vector<stoker_pool*> pools;
  for (int isa = STOKER_ISA_PORTABLE; isa <= STOKER_ISA_NEON; ++isa) {
    stoker_pool* pool = nullptr;
    if (stoker_isa_available(isa) && stoker_pool_create(1 + isa % 3, isa, 10, &pool) == STOKER_OK) pools.push_back(pool);
  }
  const auto start = std::chrono::steady_clock::now();
  long count = 0;
  for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds; ++count) {
    const uint64_t seed = draw();
    stoker_pool* pool = pools[size_t(below(int64_t(pools.size())))];
    switch (below(8)) {
      case 0: linear(pool); break;
      case 1: moe(pool); break;
      case 2: attention(pool); break;
      case 3: block(pool); break;
      case 4: route(pool); break;
      case 5: scales(); break;
      case 6: delta(pool); break;
      default: nonsense(pool); break;
    }
    draw.seed(seed);
  }
  for (stoker_pool* pool : pools) stoker_pool_destroy(pool);
  std::printf("%ld calls computed on %zu tiers\n", count, pools.size());
  return 0;
}
