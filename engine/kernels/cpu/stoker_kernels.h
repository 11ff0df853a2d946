/* The CPU kernels behind one plain C boundary: matrix products over weights in the checkpoint's own bytes.
 *
 * Nothing here knows a model, a file or Python. Every function validates its arguments before it touches memory and
 * returns STOKER_OK or a code for `stoker_error_text`; none throws or aborts. A pool may be used from any thread: calls
 * are served one after the other. Results do not depend on the number of threads nor on what else is in the call.
 */
#ifndef STOKER_KERNELS_H
#define STOKER_KERNELS_H

#include <stdint.h>

#if defined(_WIN32)
#define STOKER_API __declspec(dllexport)
#else
#define STOKER_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define STOKER_ABI_VERSION 5

enum stoker_status {
  STOKER_OK = 0,
  STOKER_NULL_POINTER,
  STOKER_BAD_FORMAT,      /* format or scale type that the library does not know, or a pair that does not exist */
  STOKER_BAD_SHAPE,       /* rows, cols or tokens not positive, or matrices of one call that do not fit together */
  STOKER_BAD_BLOCK,       /* scale block that does not divide the matrix, or a size that the format does not have */
  STOKER_BAD_STRIDE,      /* stride shorter than a row */
  STOKER_SHORT_BUFFER,    /* data, scales or zero points end before the matrix does */
  STOKER_BAD_INDEX,       /* expert id outside the table */
  STOKER_BAD_OPTION,      /* unknown ISA, activation or flag; thread count out of range */
  STOKER_ISA_UNAVAILABLE, /* this processor lacks the ISA that was asked for */
  STOKER_OUT_OF_MEMORY,
  STOKER_BAD_SCALE /* NaN or infinite */
};

enum stoker_isa { STOKER_ISA_BEST = 0, STOKER_ISA_PORTABLE, STOKER_ISA_AVX2, STOKER_ISA_AVX512, STOKER_ISA_AVX512_BF16, STOKER_ISA_NEON };

/* How a weight is encoded; the scale that belongs to it is chosen apart. Row-major unless stated. */
enum stoker_format {
  STOKER_F32 = 0,
  STOKER_F16,
  STOKER_BF16,
  STOKER_E4M3,      /* FP8, finite and NaN only */
  STOKER_E2M1,      /* FP4, two to a byte, the even column in the low nibble: MXFP4 with E8M0 per 32, NVFP4 with E4M3 per 16 */
  STOKER_INT4,      /* unsigned nibbles, even column low, minus 8 or minus the zero point: compressed-tensors pack-quantized */
  STOKER_INT4_GPTQ, /* int32 [cols / 8, rows]: eight columns to a word, lowest nibble first */
  STOKER_INT4_AWQ   /* int32 [cols, rows / 8]: eight rows to a word, in the order 0 2 4 6 1 3 5 7 */
};

enum stoker_scale_type { STOKER_SCALE_NONE = 0, STOKER_SCALE_F32, STOKER_SCALE_BF16, STOKER_SCALE_F16, STOKER_SCALE_E8M0, STOKER_SCALE_E4M3 };

/* One weight matrix [rows = out, cols = in], wherever it lies. Strides and sizes are bytes; no pointer need be aligned.
 * The scale of element (r, c) is at scales + r / block_rows * scale_row_stride + c / block_cols * scale_col_stride.
 * Weight = (code - zero) * scale * global_scale. The buffer sizes are what the caller owns: they are checked, not trusted. */
typedef struct stoker_matrix {
  int32_t format;
  int32_t scale_type;
  int64_t rows, cols;
  const void* data;
  int64_t data_bytes, row_stride; /* GPTQ and AWQ: stride of a row of words as stored */
  const void* scales;
  int64_t scale_bytes, scale_row_stride, scale_col_stride;
  int64_t block_rows, block_cols;
  const void* zeros; /* packed zero points or NULL. INT4: int32 [rows / 8, groups]; GPTQ, AWQ: int32 [groups, rows / 8] */
  int64_t zero_bytes, zero_stride;
  const void* bias; /* or NULL; one of bias_type per row, bias_stride bytes apart */
  int64_t bias_stride;
  int32_t bias_type; /* STOKER_SCALE_F32, _BF16 or _F16 */
  float global_scale;
  int32_t zero_offset; /* added to stored zero points: 1 for GPTQ version 1, else 0 */
  int32_t element_step; /* 0: as above. Else F32, F16 or BF16 stored [cols, rows]: row_stride is that of a column, and successive
                           rows lie this many elements apart, 2 where those of two matrices alternate */
} stoker_matrix;

enum stoker_activation {
  STOKER_SILU_GATE = 0, /* silu(gate) * up */
  STOKER_GPT_OSS,       /* clamp to `limit`; (up + 1) * gate * sigmoid(alpha * gate) */
  STOKER_GELU_TANH_GATE,
  STOKER_RELU2,         /* relu(up)^2, no gate */
  STOKER_SILU_GATE_CLAMPED /* silu(min(gate, limit)) * clamp(up, -limit, limit) */
};

/* One expert in its slot. Interleaved gate and up rows are two matrices with twice the row stride. gate.data is NULL for RELU2. */
typedef struct stoker_expert {
  stoker_matrix gate, up, down;
} stoker_expert;

/* The routed experts of one layer. `experts` may describe a whole arena: only the entries that `ids` names are read.
 * `outputs` keeps one row per token and rank, so that a layer may be computed in several calls, hits first; ids of -1 are
 * not in this call and their rows of `outputs` stay as they are. `y`, when wanted, is the sum over all ranks, in routing
 * order, of weights times `outputs`: every rank must have been computed by this call or an earlier one. */
typedef struct stoker_moe_call {
  int64_t tokens, hidden, intermediate, top_k;
  const float* x;     /* [tokens, hidden] */
  const int32_t* ids; /* [tokens, top_k], an index into experts or -1 */
  const stoker_expert* experts;
  int64_t num_experts;
  int32_t activation; /* stoker_activation */
  int32_t flags;      /* stoker_flag */
  float alpha, limit; /* GPT_OSS: 1.702 and 7 */
  const float* weights; /* [tokens, top_k]; may be NULL when y is */
  float* outputs;       /* [tokens, top_k, hidden], or NULL when y is wanted from this call alone */
  float* y;             /* [tokens, hidden], or NULL */
} stoker_moe_call;

enum stoker_flag {
  STOKER_FAST = 1, /* batches may round activations to bf16: relative error 5e-3 instead of 1e-6 for 8 and 16-bit weights */
  STOKER_RENORMALISE = 2
};

/* A row of keys or values in blocks of 32 numbers, the last one shorter: a bf16 scale, which is a block's largest number over 127
 * rounded up, and int8 codes. Its strides count bytes. */
enum stoker_kv_type { STOKER_KV_Q8 = 100 };

/* Grouped-query attention of `tokens` new queries over `length` cached positions, the queries being the last of them.
 * Strides count elements. sinks: one logit per query head that joins the softmax and contributes no value, or NULL. */
typedef struct stoker_attention_call {
  int64_t tokens, length, heads, kv_heads, head_dim, value_dim;
  const float* q; /* [tokens, heads, head_dim] */
  int64_t q_token_stride, q_head_stride;
  const void *keys, *values; /* [kv_heads, length, dim] by strides */
  int64_t key_head_stride, key_token_stride, value_head_stride, value_token_stride;
  int32_t kv_type; /* STOKER_F32, STOKER_BF16 or STOKER_KV_Q8 */
  int32_t reserved;
  int64_t window; /* positions that a query sees, its own included; 0 = all */
  float scale;
  float softcap; /* tanh(logit / softcap) * softcap; 0 = none */
  const float* sinks;
  float* y; /* [tokens, heads, value_dim] */
} stoker_attention_call;

/* The attention half of a pre-norm layer: x += o(attention(q, k, v of norm(x))), then `normed` = post_norm(x). Queries and keys are
 * normed per head where q_norm and k_norm are given, and their first `rotary_dim` values turned by `cosine` and `sine`. Keys and
 * values of the new tokens are written to the cache, as its last `tokens` of `length` positions. */
typedef struct stoker_block_call {
  int64_t tokens, hidden, heads, kv_heads, head_dim, rotary_dim;
  float* x;                              /* [tokens, hidden], in place */
  const float *input_norm, *post_norm;   /* [hidden] */
  const float *q_norm, *k_norm;          /* [head_dim], or NULL both */
  const float *cosine, *sine;            /* [tokens, rotary_dim / 2]; may be NULL where that is 0 */
  const stoker_matrix *q, *k, *v, *o;
  void *keys, *values; /* [kv_heads, at least length, head_dim] by strides in elements */
  int64_t kv_head_stride, kv_token_stride, length;
  int32_t kv_type; /* STOKER_F32, STOKER_BF16 or STOKER_KV_Q8 */
  int32_t flags;   /* stoker_flag */
  int64_t window;
  float eps, scale, softcap, reserved;
  const float* sinks;
  float* normed; /* [tokens, hidden] */
} stoker_block_call;

/* The top_k highest of x times the router's matrix, highest first (of equals the first), with their softmax: over all experts,
 * or with STOKER_RENORMALISE over the chosen. */
typedef struct stoker_route_call {
  int64_t tokens, top_k;
  const float* x; /* [tokens, cols] */
  const stoker_matrix* router;
  int32_t flags;
  int32_t reserved;
  int32_t* ids;   /* [tokens, top_k] */
  float* weights; /* [tokens, top_k] */
} stoker_route_call;

/* One token through the gated delta rule (Gated Delta Networks, Yang et al. 2024). Queries, keys and values are silu of a short
 * convolution over `mixed` and what came before; queries and keys are of unit length, queries over sqrt(key_dim). Value head h uses
 * key head h / (value_heads / key_heads). With a = exp(speed softplus(decay + bias)) and r = sigmoid(rate) a head's memory S becomes
 * a S + k r (v - a S k), and y is norm(S q) silu(gate). No result may overlap an argument. */
typedef struct stoker_delta_call {
  int64_t key_heads, value_heads, key_dim, value_dim;
  int64_t width;                   /* inputs that the convolution sees, the newest included: 2 or more */
  const float* mixed; /* [C]: queries, keys, values; C = 2 key_heads key_dim + value_heads value_dim */
  const float* past;  /* [width - 1, C] */
  const float* taps;  /* [width, C], the newest last */
  const float *gate, *rate, *decay; /* [value_heads, value_dim]; [value_heads] twice */
  const float *speed, *bias; /* [value_heads] */
  const float* norm;         /* [value_dim] */
  const float* memory;       /* [value_heads, key_dim, value_dim] */
  float *following, *kept;   /* what past and memory become */
  float* y;                  /* [value_heads, value_dim] */
  float eps;
  int32_t reserved;
} stoker_delta_call;

/* The half of a layer that the rule stands in, for one token: x += out(rule of the inputs of norm(x)), then `normed` = post_norm(x).
 * `rule` names constants and states; its mixed, gate, rate, decay and y are the call's own. Inputs are four matrices in the order of
 * mixed, gate, rate, decay; or two and two times NULL, with rows by key head: queries, keys, values, gate; rate, decay. */
typedef struct stoker_delta_block_call {
  stoker_delta_call rule;
  int64_t hidden;
  float* x;                             /* [hidden], in place */
  const float *input_norm, *post_norm;  /* [hidden] */
  const stoker_matrix *inputs[4], *out;
  float* normed;                        /* [hidden] */
  int32_t flags;                        /* stoker_flag */
  int32_t reserved;
} stoker_delta_block_call;

typedef struct stoker_pool stoker_pool;

STOKER_API int32_t stoker_abi_version(void);
STOKER_API const char* stoker_error_text(int32_t status);

/* threads counts the caller's own; workers spin for spin_us after a job and then sleep. isa: stoker_isa. */
STOKER_API int32_t stoker_pool_create(int32_t threads, int32_t isa, int32_t spin_us, stoker_pool** pool);
STOKER_API void stoker_pool_destroy(stoker_pool* pool); /* no call may be running; NULL is allowed */
STOKER_API const char* stoker_pool_isa(const stoker_pool* pool);
STOKER_API int32_t stoker_isa_available(int32_t isa);

STOKER_API int32_t stoker_check(const stoker_matrix* matrix); /* what a call would say about this matrix */
STOKER_API int32_t stoker_check_scales(const stoker_expert* expert);  /* reads them all: the same, or STOKER_BAD_SCALE */

/* y [tokens, rows] = x [tokens, cols] times the matrix transposed, plus its bias. */
STOKER_API int32_t stoker_linear(stoker_pool* pool, const float* x, int64_t tokens, const stoker_matrix* matrix, int32_t flags, float* y);
STOKER_API int32_t stoker_moe(stoker_pool* pool, const stoker_moe_call* call);
STOKER_API int32_t stoker_attention(stoker_pool* pool, const stoker_attention_call* call);
STOKER_API int32_t stoker_attention_block(stoker_pool* pool, const stoker_block_call* call);
STOKER_API int32_t stoker_delta_block(stoker_pool* pool, const stoker_delta_block_call* call);
STOKER_API int32_t stoker_route(stoker_pool* pool, const stoker_route_call* call);

/* Reads every byte once with all threads, for the machine's ceiling. */
STOKER_API int32_t stoker_read(stoker_pool* pool, const void* data, int64_t bytes, uint64_t* sum);

#ifdef __cplusplus
}
#endif
#endif
