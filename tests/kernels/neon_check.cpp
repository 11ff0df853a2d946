// The NEON tier against the portable one: random matrices of every format, alone and as experts, attention alone
// and with what stands around it, and the router.
// Usage: neon_check [SEED]; prints the largest relative error of each kind and returns 1 where one is beyond its limit.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "stoker_kernels.h"

namespace {

std::mt19937_64 draw;
stoker_pool *neon = nullptr, *portable = nullptr;
bool failed = false;

int64_t below(int64_t count) { return int64_t(draw() % uint64_t(count)); }
float unit() { return float(below(2001) - 1000) / 1000.0f; }

void must(int32_t status, const char* what) {
  if (status == STOKER_OK) return;
  std::printf("%s: %s\n", what, stoker_error_text(status));
  std::exit(1);
}

std::vector<float> floats(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = unit();
  return out;
}

// Root mean square of the difference over that of what is expected.
void compare(const char* what, const std::vector<float>& found, const std::vector<float>& wanted, double limit) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += std::pow(double(found[i]) - wanted[i], 2);
    size += std::pow(double(wanted[i]), 2);
  }
  const double error = std::sqrt(difference / size);
  const bool is_good = error <= limit;  // false for NaN
  if (!is_good) failed = true;
  std::printf("%-16s %.2e of %.0e%s\n", what, error, limit, is_good ? "" : "  TOO LARGE");
}

uint16_t f16_or_bf16(int format) {  // either sign, a size within four octaves below 1
  const int mantissa = format == STOKER_F16 ? 10 : 7, bias = format == STOKER_F16 ? 15 : 127;
  return uint16_t(below(2) << 15 | (bias - 4 + below(4)) << mantissa | below(int64_t(1) << mantissa));
}

const char* const kNames[] = {"F32", "F16", "BF16", "E4M3", "E2M1", "INT4", "GPTQ", "AWQ"};
int scale_size(int type) { return type == STOKER_SCALE_F32 ? 4 : type == STOKER_SCALE_BF16 || type == STOKER_SCALE_F16 ? 2 : 1; }

struct Made {
  stoker_matrix m{};
  std::vector<uint8_t> data, scales, zeros;
  std::vector<float> bias;
};

// Every buffer begins at an odd address and ends with its matrix.
uint8_t* odd(std::vector<uint8_t>& buffer, int64_t bytes) {
  buffer.resize(size_t(bytes) + 1);
  for (uint8_t& byte : buffer) byte = uint8_t(below(256));
  return buffer.data() + 1;
}

void fill(uint8_t* at, int64_t count, int type) {  // scales near 1
  for (int64_t i = 0; i < count; ++i) {
    const float value = 1.0f + 0.5f * unit();
    const uint16_t half = uint16_t(f16_or_bf16(type == STOKER_SCALE_F16 ? STOKER_F16 : STOKER_BF16) & 0x7fff);
    const uint8_t byte = uint8_t(type == STOKER_SCALE_E8M0 ? 124 + below(5) : 0x30 + below(16));
    if (type == STOKER_SCALE_F32) std::memcpy(at + 4 * i, &value, 4);
    else if (scale_size(type) == 2) std::memcpy(at + 2 * i, &half, 2);
    else at[i] = byte;
  }
}

void make(Made& out, int format, int64_t rows, int64_t cols, int scale_type, int64_t block, bool zeroed, bool biased) {
  stoker_matrix& m = out.m;
  m.format = format;
  m.rows = rows;
  m.cols = cols;
  m.global_scale = format >= STOKER_E4M3 ? 0.25f : 1.0f;
  const bool by_columns = format >= STOKER_INT4_GPTQ;
  int64_t lines = rows, row = format == STOKER_F32 ? cols * 4 : format <= STOKER_BF16 ? cols * 2 : format == STOKER_E4M3 ? cols : cols / 2;
  if (format == STOKER_INT4_GPTQ) lines = cols / 8, row = rows * 4;
  if (format == STOKER_INT4_AWQ) lines = cols, row = rows / 2;
  uint8_t* data = odd(out.data, lines * row);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float value = unit();
    const uint16_t half = f16_or_bf16(format);
    if (format == STOKER_F32) std::memcpy(data + 4 * i, &value, 4);
    if (format == STOKER_F16 || format == STOKER_BF16) std::memcpy(data + 2 * i, &half, 2);
    if (format == STOKER_E4M3) data[i] = uint8_t(below(2) << 7 | below(0x40));
  }
  m.data = data;
  m.data_bytes = lines * row;
  m.row_stride = row;
  if (format >= STOKER_E4M3) {
    m.scale_type = scale_type;
    m.block_rows = format == STOKER_E4M3 ? block : 1;
    m.block_cols = block;
    const int64_t size = scale_size(scale_type), tall = (rows + m.block_rows - 1) / m.block_rows, wide = (cols + block - 1) / block;
    m.scale_row_stride = by_columns ? size : wide * size;
    m.scale_col_stride = by_columns ? rows * size : size;
    m.scale_bytes = tall * wide * size;
    uint8_t* scales = odd(out.scales, m.scale_bytes);
    fill(scales, tall * wide, scale_type);
    m.scales = scales;
    if (zeroed) {
      const int64_t words = (rows + 7) / 8;
      m.zero_stride = (by_columns ? words : wide) * 4;
      m.zero_bytes = words * wide * 4;
      m.zeros = odd(out.zeros, m.zero_bytes);
      m.zero_offset = format == STOKER_INT4_GPTQ;
    }
  }
  if (biased) {
    out.bias = floats(rows);
    m.bias = out.bias.data();
    m.bias_stride = 4;
    m.bias_type = STOKER_SCALE_F32;
  }
}

struct Kind {
  int format, scale_type;
  int64_t block;
  bool zeroed;
};
const Kind kKinds[] = {
    {STOKER_F32, 0, 0, false},
    {STOKER_F16, 0, 0, false},
    {STOKER_BF16, 0, 0, false},
    {STOKER_E4M3, STOKER_SCALE_F32, 128, false},
    {STOKER_E4M3, STOKER_SCALE_BF16, 48, false},
    {STOKER_E4M3, STOKER_SCALE_E8M0, 32, false},
    {STOKER_E2M1, STOKER_SCALE_E8M0, 32, false},
    {STOKER_E2M1, STOKER_SCALE_E4M3, 16, false},
    {STOKER_INT4, STOKER_SCALE_BF16, 32, false},
    {STOKER_INT4, STOKER_SCALE_F16, 64, true},
    {STOKER_INT4_GPTQ, STOKER_SCALE_F16, 32, true},
    {STOKER_INT4_AWQ, STOKER_SCALE_F16, 64, true},
};

// Of two ways to the same product: different orders of a sum, or activations rounded to int8 or bf16 as well.
double limit_of(int format, bool fast) { return format >= STOKER_E2M1 || fast ? 1e-2 : 2e-6; }

void linear(const Kind& kind, bool fast) {
  char what[64];
  std::snprintf(what, sizeof what, "linear %s%s", kNames[kind.format], fast ? " fast" : "");
  std::vector<float> found, wanted;
  for (int64_t tokens : {1, 3, 7, 33}) {
    const bool is_nibble = kind.format >= STOKER_E2M1;
    const int64_t rows = kind.format >= STOKER_INT4_GPTQ ? 40 : 37, cols = is_nibble ? 192 : 157;
    Made w;
    make(w, kind.format, rows, cols, kind.scale_type, kind.block, kind.zeroed, tokens == 3);
    const std::vector<float> x = floats(tokens * cols);
    std::vector<float> ours(size_t(tokens * rows)), theirs(ours.size());
    must(stoker_linear(neon, x.data(), tokens, &w.m, fast, ours.data()), what);
    must(stoker_linear(portable, x.data(), tokens, &w.m, 0, theirs.data()), what);
    found.insert(found.end(), ours.begin(), ours.end());
    wanted.insert(wanted.end(), theirs.begin(), theirs.end());
  }
  compare(what, found, wanted, limit_of(kind.format, fast));
}

void moe(const Kind& kind, int activation) {
  char what[64];
  std::snprintf(what, sizeof what, "MoE %s, %d", kNames[kind.format], activation);
  constexpr int64_t kExperts = 5, kTopK = 2, kHidden = 128, kWide = 192;
  std::vector<Made> parts(kExperts * 3);
  std::vector<stoker_expert> table(kExperts);
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int part = 0; part < 3; ++part)
      make(parts[size_t(e * 3 + part)], kind.format, part == 2 ? kHidden : kWide, part == 2 ? kWide : kHidden, kind.scale_type,
           kind.block, kind.zeroed, true);
    if (activation != STOKER_RELU2) table[size_t(e)].gate = parts[size_t(e * 3)].m;
    table[size_t(e)].up = parts[size_t(e * 3 + 1)].m;
    table[size_t(e)].down = parts[size_t(e * 3 + 2)].m;
  }
  for (int64_t tokens : {1, 21}) {
    std::vector<int32_t> ids(size_t(tokens * kTopK));
    for (int32_t& id : ids) id = int32_t(below(kExperts));
    std::vector<float> x = floats(tokens * kHidden), weights = floats(tokens * kTopK);
    for (float& value : x) value *= 0.2f;
    std::vector<float> ours(size_t(tokens * kHidden)), theirs(ours.size());
    stoker_moe_call call{};
    call.tokens = tokens;
    call.hidden = kHidden;
    call.intermediate = kWide;
    call.top_k = kTopK;
    call.x = x.data();
    call.ids = ids.data();
    call.experts = table.data();
    call.num_experts = kExperts;
    call.activation = activation;
    call.alpha = 1.702f;
    call.limit = 7.0f;
    call.weights = weights.data();
    call.y = ours.data();
    must(stoker_moe(neon, &call), what);
    call.y = theirs.data();
    must(stoker_moe(portable, &call), what);
    compare(what, ours, theirs, kind.format >= STOKER_E2M1 ? 3e-2 : 1e-5);
  }
}

void attention(int kv_type, int64_t window, bool sunk) {
  constexpr int64_t kHeads = 6, kKvHeads = 2, kDim = 40, kTokens = 19, kLength = 150;
  stoker_attention_call c{};
  const std::vector<float> q = floats(kTokens * kHeads * kDim), sinks = floats(kHeads);
  std::vector<float> keys = floats(kKvHeads * kLength * kDim), values = floats(kKvHeads * kLength * kDim);
  std::vector<uint16_t> short_keys(keys.size()), short_values(values.size());
  for (uint16_t& key : short_keys) key = f16_or_bf16(STOKER_BF16);
  for (uint16_t& value : short_values) value = f16_or_bf16(STOKER_BF16);
  constexpr int64_t kBlocks = (kDim + 31) / 32, kBytes = kDim + 2 * kBlocks;  // of a row of codes with their scales
  std::vector<uint8_t> coded_keys(size_t(kKvHeads * kLength * kBytes)), coded_values(coded_keys.size());
  for (std::vector<uint8_t>* rows : {&coded_keys, &coded_values})
    for (size_t i = 0; i < rows->size(); ++i) {
      const size_t within = i % kBytes % 34;
      (*rows)[i] = within == 0 ? 0 : within == 1 ? 0x3c : uint8_t(floats(1)[0] * 60.0f + 128.0f);
    }
  const bool is_short = kv_type == STOKER_BF16, is_coded = kv_type == STOKER_KV_Q8;
  const int64_t row = is_coded ? kBytes : kDim;
  c.tokens = kTokens;
  c.length = kLength;
  c.heads = kHeads;
  c.kv_heads = kKvHeads;
  c.head_dim = c.value_dim = kDim;
  c.q = q.data();
  c.q_token_stride = kHeads * kDim;
  c.q_head_stride = kDim;
  c.keys = is_coded ? static_cast<const void*>(coded_keys.data()) : is_short ? static_cast<const void*>(short_keys.data()) : keys.data();
  c.values = is_coded ? static_cast<const void*>(coded_values.data()) : is_short ? static_cast<const void*>(short_values.data()) : values.data();
  c.key_token_stride = c.value_token_stride = row;
  c.key_head_stride = c.value_head_stride = kLength * row;
  c.kv_type = kv_type;
  c.window = window;
  c.scale = 0.3f;
  c.sinks = sunk ? sinks.data() : nullptr;
  std::vector<float> ours(size_t(kTokens * kHeads * kDim)), theirs(ours.size());
  c.y = ours.data();
  must(stoker_attention(neon, &c), "attention");
  c.y = theirs.data();
  must(stoker_attention(portable, &c), "attention");
  compare(is_coded ? "attention Q8" : is_short ? "attention BF16" : "attention F32", ours, theirs, 5e-6);
}

// The attention block, by its stream, its result and the cache.
void block(const Kind& kind, int kv_type, bool full) {
  constexpr int64_t kHidden = 128, kHeads = 4, kKvHeads = 2, kDim = 32, kTokens = 7, kLength = 60;
  Made q, k, v, o;
  const auto part = [&](Made& out, int64_t rows, int64_t cols) {
    make(out, kind.format, rows, cols, kind.scale_type, kind.block, kind.zeroed, full);
  };
  part(q, kHeads * kDim, kHidden);
  part(k, kKvHeads * kDim, kHidden);
  part(v, kKvHeads * kDim, kHidden);
  part(o, kHidden, kHeads * kDim);
  const std::vector<float> x = floats(kTokens * kHidden), sinks = floats(kHeads), turn = floats(kTokens * kDim / 4);
  std::vector<float> norm = floats(kHidden);
  for (float& value : norm) value = 1.0f + 0.2f * value;
  std::vector<float> streams[2] = {x, x}, normed[2] = {std::vector<float>(x.size()), std::vector<float>(x.size())};
  std::vector<uint32_t> caches[2] = {std::vector<uint32_t>(2 * kKvHeads * kLength * kDim), std::vector<uint32_t>(2 * kKvHeads * kLength * kDim)};
  for (int i = 0; i < 2; ++i) {
    stoker_block_call c{};
    c.tokens = kTokens;
    c.hidden = kHidden;
    c.heads = kHeads;
    c.kv_heads = kKvHeads;
    c.head_dim = kDim;
    c.rotary_dim = kDim / 2;
    c.x = streams[i].data();
    c.input_norm = c.post_norm = norm.data();
    c.q_norm = c.k_norm = full ? norm.data() : nullptr;
    c.cosine = turn.data();
    c.sine = turn.data();
    c.q = &q.m;
    c.k = &k.m;
    c.v = &v.m;
    c.o = &o.m;
    c.keys = caches[i].data();
    c.values = caches[i].data() + kKvHeads * kLength * kDim;
    c.kv_head_stride = kLength * kDim;
    c.kv_token_stride = kDim;
    c.length = kLength;
    c.kv_type = kv_type;
    c.window = full ? 20 : 0;
    c.eps = 1e-6f;
    c.scale = 0.02f;
    c.sinks = full ? sinks.data() : nullptr;
    c.normed = normed[i].data();
    must(stoker_attention_block(i == 0 ? neon : portable, &c), "attention block");
  }
  char what[64];
  std::snprintf(what, sizeof what, "block %s", kNames[kind.format]);
  const double limit = kind.format >= STOKER_E2M1 ? 3e-2 : kv_type == STOKER_BF16 ? 5e-3 : 1e-5;  // a cache may round to its other side
  compare(what, streams[0], streams[1], limit);
  compare(what, normed[0], normed[1], limit);
  if (kv_type != STOKER_F32) return;
  std::vector<float> kept[2];
  for (int i = 0; i < 2; ++i) {
    kept[i].resize(caches[i].size());
    std::memcpy(kept[i].data(), caches[i].data(), caches[i].size() * 4);
  }
  compare("block's cache", kept[0], kept[1], limit);
}

void route() {
  Made router;
  make(router, STOKER_F32, 40, 157, 0, 0, false, true);
  const std::vector<float> x = floats(9 * 157);
  for (int32_t flags : {0, int32_t(STOKER_RENORMALISE)}) {
    std::vector<int32_t> ids[2] = {std::vector<int32_t>(9 * 4), std::vector<int32_t>(9 * 4)};
    std::vector<float> weights[2] = {std::vector<float>(9 * 4), std::vector<float>(9 * 4)};
    for (int i = 0; i < 2; ++i) {
      stoker_route_call c{};
      c.tokens = 9;
      c.top_k = 4;
      c.x = x.data();
      c.router = &router.m;
      c.flags = flags;
      c.ids = ids[i].data();
      c.weights = weights[i].data();
      must(stoker_route(i == 0 ? neon : portable, &c), "route");
    }
    if (ids[0] != ids[1]) failed = true, std::puts("route: other experts");
    compare("route", weights[0], weights[1], 1e-5);
  }
}

void delta() {
  stoker_delta_block_call c{};
  stoker_delta_call& rule = c.rule;
  rule.key_heads = 2;
  rule.value_heads = 4;
  rule.key_dim = 24;
  rule.value_dim = 70;
  rule.width = 4;
  c.hidden = 96;
  const int64_t values = rule.value_heads * rule.value_dim, channels = 2 * rule.key_heads * rule.key_dim + values;
  Made main, small, out;
  make(main, STOKER_F32, channels + values, c.hidden, 0, 0, false, false);
  make(small, STOKER_F32, 2 * rule.value_heads, c.hidden, 0, 0, false, false);
  make(out, STOKER_F32, c.hidden, values, 0, 0, false, false);
  c.inputs[0] = &main.m;
  c.inputs[1] = &small.m;
  c.out = &out.m;
  const std::vector<float> past = floats(3 * channels), taps = floats(4 * channels), by_head = floats(2 * rule.value_heads),
                           norm = floats(rule.value_dim), memory = floats(values * rule.key_dim), norms = floats(2 * c.hidden),
                           stream = floats(c.hidden);
  std::vector<float> following[2], kept[2], x[2], normed[2];
  for (int i = 0; i < 2; ++i) {
    following[i].resize(past.size());
    kept[i].resize(memory.size());
    normed[i].resize(stream.size());
    x[i] = stream;
    rule.past = past.data();
    rule.taps = taps.data();
    rule.speed = by_head.data();
    rule.bias = rule.speed + rule.value_heads;
    rule.norm = norm.data();
    rule.memory = memory.data();
    rule.following = following[i].data();
    rule.kept = kept[i].data();
    rule.eps = 1e-5f;
    c.x = x[i].data();
    c.input_norm = norms.data();
    c.post_norm = c.input_norm + c.hidden;
    c.normed = normed[i].data();
    must(stoker_delta_block(i == 0 ? neon : portable, &c), "delta block");
  }
  compare("delta block", x[0], x[1], 1e-4);
  compare("delta block's norm", normed[0], normed[1], 1e-4);
  compare("delta block's memory", kept[0], kept[1], 1e-4);
  compare("delta block's inputs", following[0], following[1], 1e-5);
}

}  // namespace

int main(int argc, char** argv) {
  draw.seed(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1);
  must(stoker_pool_create(2, STOKER_ISA_NEON, 10, &neon), "the NEON pool");
  must(stoker_pool_create(2, STOKER_ISA_PORTABLE, 10, &portable), "the portable pool");
  for (const Kind& kind : kKinds)
    for (bool fast : {false, true}) linear(kind, fast);
  for (const Kind& kind : kKinds) moe(kind, STOKER_SILU_GATE);
  for (int activation = STOKER_SILU_GATE; activation <= STOKER_SILU_GATE_CLAMPED; ++activation) moe(kKinds[0], activation);
  for (int kv_type : {int(STOKER_F32), int(STOKER_BF16), int(STOKER_KV_Q8)})
    for (int64_t window : {0, 33}) attention(kv_type, window, window == 0);
  for (const Kind& kind : kKinds) block(kind, STOKER_F32, kind.format % 2 == 0);
  for (bool full : {false, true}) block(kKinds[0], STOKER_BF16, full);
  route();
  delta();
  stoker_pool_destroy(neon);
  stoker_pool_destroy(portable);
  std::puts(failed ? "failed" : "all alike");
  return failed ? 1 : 0;
}
