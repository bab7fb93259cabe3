// One call of a product as its kernels see it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace minfer {

// Lanes of a tile: the rows of a matrix that a kernel works on together.
constexpr int kTile = 16;

constexpr int64_t tiles_of(int64_t rows) { return (rows + kTile - 1) / kTile; }

// Columns that share a scale of x.
constexpr int kBlock = 32;

// A matrix of n rows and k columns in tiles: every plane is [tiles, columns of the plane, 16 rows]. What the planes
// hold is told in quant/planes.py; a packed weight is (code - offset) * d * scale + min_sign * dmin * min.
struct Matrix {
  enum Type { kPacked, kF32, kF16, kBF16 };
  Type type;
  int64_t n, k;
  const void* values;  // of a plain type; the rest is for packed ones
  const uint32_t *codes, *codes_high;
  const void* d;  // float16, or the exponents of MXFP4
  const void* scales;
  const void* dmin;
  const uint8_t* mins;
  int low, high;  // bits of a code in each of the planes
  int block, group;
  int offset, min_sign;
  bool d_is_exponent, scales_are_signed, has_codebook;
  uint8_t codebook[64];  // what a code stands for, plus 128; 16 entries, over and over
  const float* bias;  // [n] or null
};

// One call: rows of x, normed first if there is a norm, times one or more matrices.
struct Product {
  int64_t m, k;
  const float* x;           // [m, k], or more rows of which only some are wanted
  const int32_t* rows;      // [m] of x, residual and y that are wanted; null: all
  const float* norm;        // [k] weight of an RMSNorm, or null
  float eps;                // of that norm
  bool exact;               // float32 activations: asked for, or because a matrix is of a plain type
  enum Gate { kNone, kSilu, kGelu } gate;
  std::vector<Matrix> matrices;  // with a gate: two, and y[0] = act(x w0) * (x w1)
  const float* residual;    // [m, n] added to y[0], or null
  std::vector<float*> y;    // [m, n] each
  int64_t begin, end;       // the rows that are at work, of m
  char* panel;              // those rows made ready, bytes_per_row() each, 64-byte aligned

  int64_t row(int64_t i) const { return rows ? rows[i] : i; }
};

struct MatmulKernels {
  int rows;  // of x that are made ready together
  size_t (*bytes_per_row)(const Product&);
  // Makes a group of ``rows`` rows ready, of those at work.
  void (*prepare)(const Product&, int64_t group);
  // Whether there are products with such a matrix.
  bool (*takes)(const Matrix&);
  // Tiles begin .. end of output y[i], for the rows at work.
  void (*multiply)(const Product&, size_t output, int64_t begin, int64_t end);
};

}  // namespace minfer
