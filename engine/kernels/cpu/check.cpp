#include "check.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace stoker {
namespace {

constexpr int64_t kLimit = int64_t(1) << 36;  // of a stride, so that its product with an index fits 64 bits
constexpr int64_t kMaxDimension = int64_t(1) << 24;
constexpr int32_t kMaxElementStep = 1024;

bool in_range(int64_t value, int64_t limit) { return value > 0 && value <= limit; }

// Whether `rows` rows of `row_bytes`, `stride` apart, fit `owned` bytes.
int check_extent(int64_t rows, int64_t row_bytes, int64_t stride, int64_t owned) {
  if (rows > 1 && (stride < row_bytes || stride > kLimit)) return STOKER_BAD_STRIDE;
  if (rows > 1 && rows - 1 > (owned - row_bytes) / stride) return STOKER_SHORT_BUFFER;
  return row_bytes <= owned ? STOKER_OK : STOKER_SHORT_BUFFER;
}

bool is_nibble(int format) { return format >= STOKER_E2M1; }
bool by_columns(int format) { return format == STOKER_INT4_GPTQ || format == STOKER_INT4_AWQ; }

int check_data(const stoker_matrix& m) {
  if (m.element_step != 0) {
    if (m.format > STOKER_BF16) return STOKER_BAD_FORMAT;
    if (m.element_step < 0 || m.element_step > kMaxElementStep) return STOKER_BAD_STRIDE;
    const int64_t size = m.format == STOKER_F32 ? 4 : 2;
    return check_extent(m.cols, ((m.rows - 1) * m.element_step + 1) * size, m.row_stride, m.data_bytes);
  }
  switch (m.format) {
    case STOKER_F32: return check_extent(m.rows, m.cols * 4, m.row_stride, m.data_bytes);
    case STOKER_F16:
    case STOKER_BF16: return check_extent(m.rows, m.cols * 2, m.row_stride, m.data_bytes);
    case STOKER_E4M3: return check_extent(m.rows, m.cols, m.row_stride, m.data_bytes);
    case STOKER_INT4_GPTQ: return check_extent(m.cols / 8, m.rows * 4, m.row_stride, m.data_bytes);
    case STOKER_INT4_AWQ: return check_extent(m.cols, m.rows / 8 * 4, m.row_stride, m.data_bytes);
    default: return check_extent(m.rows, m.cols / 2, m.row_stride, m.data_bytes);
  }
}

int check_blocks(const stoker_matrix& m) {
  if (!in_range(m.block_rows, kMaxDimension) || !in_range(m.block_cols, kMaxDimension)) return STOKER_BAD_BLOCK;
  if (!is_nibble(m.format)) return STOKER_OK;  // FP8: the last block may be partial
  if (m.block_rows != 1 || m.cols % m.block_cols != 0) return STOKER_BAD_BLOCK;
  if (m.block_cols % 32 != 0 && m.block_cols != 16) return STOKER_BAD_BLOCK;
  if (by_columns(m.format) && (m.rows % 8 != 0 || m.block_cols % 32 != 0)) return STOKER_BAD_BLOCK;
  return STOKER_OK;
}

int check_scales(const stoker_matrix& m) {
  const int size = scale_size(m.scale_type);
  if (size < 0) return STOKER_BAD_FORMAT;
  if (size == 0) return is_nibble(m.format) || m.format == STOKER_E4M3 ? STOKER_BAD_FORMAT : STOKER_OK;
  if (m.format < STOKER_E4M3) return STOKER_BAD_FORMAT;
  if (m.scales == nullptr) return STOKER_NULL_POINTER;
  if (const int status = check_blocks(m)) return status;
  const int64_t rows = (m.rows + m.block_rows - 1) / m.block_rows, cols = (m.cols + m.block_cols - 1) / m.block_cols;
  const bool columns_outermost = by_columns(m.format);
  if (cols > 1 && (m.scale_col_stride < size || m.scale_col_stride > kLimit)) return STOKER_BAD_STRIDE;
  if (rows > 1 && (m.scale_row_stride < size || m.scale_row_stride > kLimit)) return STOKER_BAD_STRIDE;
  if (columns_outermost && rows > 1 && m.scale_row_stride != size) return STOKER_BAD_STRIDE;
  const int64_t last_col = cols > 1 ? (cols - 1) * m.scale_col_stride : 0;
  const int64_t last_row = rows > 1 ? (rows - 1) * m.scale_row_stride : 0;  // below 2^64: dimensions and strides are bounded
  return last_row + last_col + size <= m.scale_bytes ? STOKER_OK : STOKER_SHORT_BUFFER;
}

int check_zeros(const stoker_matrix& m) {
  if (m.zeros == nullptr) return STOKER_OK;
  if (m.format < STOKER_INT4) return STOKER_BAD_FORMAT;
  if (m.block_cols % 32 != 0) return STOKER_BAD_BLOCK;
  if (m.zero_offset < 0 || m.zero_offset > 1) return STOKER_BAD_OPTION;
  const int64_t groups = m.cols / m.block_cols, words = (m.rows + 7) / 8;
  return by_columns(m.format) ? check_extent(groups, words * 4, m.zero_stride, m.zero_bytes)
                              : check_extent(words, groups * 4, m.zero_stride, m.zero_bytes);
}

int check_bias(const stoker_matrix& m) {
  if (m.bias == nullptr) return STOKER_OK;
  if (m.bias_type != STOKER_SCALE_F32 && m.bias_type != STOKER_SCALE_BF16 && m.bias_type != STOKER_SCALE_F16)
    return STOKER_BAD_FORMAT;
  return m.bias_stride >= scale_size(m.bias_type) && m.bias_stride <= kLimit ? STOKER_OK : STOKER_BAD_STRIDE;
}

// Whether any of `count` codes, without their sign, is at least `first_bad`: written so that compilers make vectors of it.
template <class Code>
bool any_from(const char* data, int64_t count, Code magnitude, Code first_bad) {
  Code most = 0;
  for (int64_t i = 0; i < count; ++i) {
    Code code;
    memcpy(&code, data + i * int64_t(sizeof code), sizeof code);
    code = Code(code & magnitude);
    most = code > most ? code : most;
  }
  return most >= first_bad;
}

bool any_unusable(int type, const char* scales, int64_t count) {
  switch (type) {
    case STOKER_SCALE_F32: return any_from<int32_t>(scales, count, 0x7fffffff, 0x7f800000);
    case STOKER_SCALE_BF16: return any_from<int16_t>(scales, count, 0x7fff, 0x7f80);
    case STOKER_SCALE_F16: return any_from<int16_t>(scales, count, 0x7fff, 0x7c00);
    case STOKER_SCALE_E8M0: return any_from<uint8_t>(scales, count, 0xff, 0xff);
    default: return any_from<uint8_t>(scales, count, 0x7f, 0x7f);
  }
}

}  // namespace

int check_numbers(const stoker_matrix& m) {
  const int64_t size = scale_size(m.scale_type);
  if (size == 0) return STOKER_OK;
  const char* scales = static_cast<const char*>(m.scales);
  int64_t outer = (m.rows + m.block_rows - 1) / m.block_rows, inner = (m.cols + m.block_cols - 1) / m.block_cols;
  int64_t outer_stride = m.scale_row_stride, inner_stride = m.scale_col_stride;
  if (inner > 1 && inner_stride != size) {
    std::swap(outer, inner);
    std::swap(outer_stride, inner_stride);
  }
  if (inner > 1 && inner_stride != size) {  // neither direction is dense
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i)
        if (any_unusable(m.scale_type, scales + o * outer_stride + i * inner_stride, 1)) return STOKER_BAD_SCALE;
    return STOKER_OK;
  }
  if (outer_stride == inner * size) inner *= std::exchange(outer, 1);
  for (int64_t o = 0; o < outer; ++o)
    if (any_unusable(m.scale_type, scales + o * outer_stride, inner)) return STOKER_BAD_SCALE;
  return STOKER_OK;
}

int scale_size(int scale_type) {
  switch (scale_type) {
    case STOKER_SCALE_NONE: return 0;
    case STOKER_SCALE_F32: return 4;
    case STOKER_SCALE_BF16:
    case STOKER_SCALE_F16: return 2;
    case STOKER_SCALE_E8M0:
    case STOKER_SCALE_E4M3: return 1;
    default: return -1;
  }
}

int check_matrix(const stoker_matrix& m) {
  if (m.format < STOKER_F32 || m.format > STOKER_INT4_AWQ) return STOKER_BAD_FORMAT;
  if (m.data == nullptr) return STOKER_NULL_POINTER;
  if (!in_range(m.rows, kMaxDimension) || !in_range(m.cols, kMaxDimension)) return STOKER_BAD_SHAPE;
  if (m.data_bytes < 0 || m.scale_bytes < 0 || m.zero_bytes < 0) return STOKER_SHORT_BUFFER;
  if (const int status = check_scales(m)) return status;  // first: it says whether 4-bit columns divide
  if (const int status = check_data(m)) return status;
  if (const int status = check_zeros(m)) return status;
  return check_bias(m);
}

}  // namespace stoker
