// One call of attention as its kernels see it.

#pragma once

#include <cstdint>

#include "scratch.h"

namespace minfer {

// Rows of tokens; query heads in groups, each with a head of keys and values of its own. A row has ``slots`` keys; that
// of a row, head and slot is ``dim`` numbers from row * row_stride + head * head_stride + slot * slot_stride on.
struct Attention {
  int64_t rows, tokens, kv_heads, group, dim, half, slots;
  const float* q;                // [rows, tokens, kv_heads * group, dim]
  const float *k, *v;            // [rows, tokens, kv_heads, dim]
  const float *cos, *sin;        // [rows, tokens, half]: dimensions i and half + i are rotated together
  const int32_t* positions;      // [rows, tokens], negative for padding
  const int32_t* until;          // [rows, tokens], without a cache: a key is seen by tokens of its row from its own on,
                                 // up to, without, this one; or null: by all
  const float *q_norm, *k_norm;  // [dim], weights of an RMSNorm over a head, or null
  int32_t window;                // how many positions a query sees, its own included; 0: no limit
  float eps, scale, softcap;     // of the norms; of the scores; a softcap of 0 is none
  bool cached;                   // slot s is position s; else it is token s of the row, and keys and values are k and v
  bool narrow;                   // keys and values are bfloat16, else float32
  void *keys, *values;           // where rotated keys go and both are read from
  int64_t row_stride, head_stride, slot_stride;
  int64_t queries;               // how many of them attend together
  float* out;                    // as q
};

struct AttentionKernels {
  // Norms and rotates the keys of a row and head; into a cache they go with their values.
  void (*write_keys)(const Attention&, int64_t row, int64_t head, Scratch&);
  // After that, the outputs of queries i * a.queries .. (i + 1) * a.queries of the heads that share those keys.
  void (*attend)(const Attention&, int64_t row, int64_t head, int64_t i, Scratch&);
};

}  // namespace minfer
