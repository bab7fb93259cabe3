// Products of rows of x with tiles of a quantised matrix.
//
// A tile is 16 rows of the matrix, one a lane, so no sum ever crosses lanes. The products of a block of integers with
// its codes are exact integers, which a processor adds four at a time; blocks are added in float32, in order. In the
// exact mode, and for weights that are plain numbers, weights are expanded exactly and added column by column. In both
// a result depends on the row of x and the row of the matrix alone.

namespace minfer::MINFER_ISA {

constexpr int kAhead = 24;  // blocks between a prefetch and its use: the fastest of 4 to 96

template <int rows, int group, typename Codes>
MINFER_INLINE void multiply_integers(const Codes& codes, const Scales& scales, const Panel& x, Floats* sums) {
  Floats sum[rows] = {};
  const uint32_t* digits = x.digits();
  const float *scale = x.scales(), *total = x.sums();
  const float *step = scales.step, *lowest = scales.lowest;
  for (int64_t b = 0; b < x.k / kBlock; b++) {
    if (rows <= 2) codes.prefetch(b + kAhead);  // with more rows the products take longer than memory
    repeat<kBlock / group>([&](auto half) MINFER_ALWAYS {
      Dot dot[rows];
      repeat<group / 4>([&](auto i) MINFER_ALWAYS {
        constexpr int v = half * group / 4 + i;
        Words w = codes.at(b, v);
        repeat<rows>([&](auto r) MINFER_ALWAYS { dot[r].add(w, digits + (v * rows + r) * 2); });
      });
      Floats s = load<Floats>(step), least = load<Floats>(lowest);
      const float* t = total + (group == kBlock ? 0 : 1 + half) * rows;
      repeat<rows>([&](auto r) MINFER_ALWAYS {
        sum[r] = fma(s, to_floats(dot[r].total()) * broadcast(scale[r]), sum[r]);
        sum[r] = fma(least, broadcast(t[r]), sum[r]);
      });
      step += kTile, lowest += kTile;
    });
    digits += kBlock / 4 * rows * 2, scale += rows, total += 3 * rows;
  }
  repeat<rows>([&](auto r) MINFER_ALWAYS { sums[r] = sum[r]; });
}

template <int rows, typename Columns>
MINFER_INLINE void multiply_floats(const Columns& weights, const Panel& x, Floats* sums) {
  Floats sum[rows] = {};
  const float* values = x.values();
  for (int64_t b = 0; b * kBlock < x.k; b++) {
    Floats columns[kBlock];
    weights.expand(b, columns);
    int n = int(std::min<int64_t>(kBlock, x.k - b * kBlock));
    for (int i = 0; i < n; i++) {
      repeat<rows>([&](auto r) MINFER_ALWAYS { sum[r] = fma(columns[i], broadcast(values[r]), sum[r]); });
      values += rows;
    }
  }
  repeat<rows>([&](auto r) MINFER_ALWAYS { sums[r] = sum[r]; });
}

// Calls action with a constant: rows, one of most, most / 2 .. 1.
template <int most = kRows, typename Action>
MINFER_INLINE void with_rows(int rows, const Action& action) {
  if constexpr (most > 1) {
    if (rows < most) return with_rows<most / 2>(rows, action);
  }
  action(std::integral_constant<int, most>());
}

// A tile of a matrix, made ready.
struct Tile {
  const Matrix& w;
  int64_t index;
  Scales scales;
  bool exact;
};

template <typename Codes, int group>
void multiply_packed(const Tile& tile, const Panel& x, Floats* sums) {
  Codes codes(tile.w, tile.index);
  with_rows(x.rows, [&](auto rows) {
    if (tile.exact) {
      multiply_floats<rows>(PackedColumns<Codes>{codes, tile.scales, group}, x, sums);
    } else {
      multiply_integers<rows, group>(codes, tile.scales, x, sums);
    }
  });
}

template <typename Number>
void multiply_plain(const Tile& tile, const Panel& x, Floats* sums) {
  PlainColumns<Number> columns{static_cast<const Number*>(tile.w.values) + tile.index * tile.w.k * kTile, tile.w.k};
  with_rows(x.rows, [&](auto rows) { multiply_floats<rows>(columns, x, sums); });
}

// A tile times a panel: sums[x.rows].
using Multiply = void (*)(const Tile&, const Panel&, Floats* sums);

// Null for a combination that no format has.
inline Multiply multiply_of(const Matrix& w) {
  switch (w.type) {
    case Matrix::kF32: return multiply_plain<float>;
    case Matrix::kF16: return multiply_plain<Float16>;
    case Matrix::kBF16: return multiply_plain<BFloat16>;
    case Matrix::kPacked: break;
  }
  switch (w.has_codebook * 10000 + w.group * 100 + w.low * 10 + w.high) {
    case 1620: return multiply_packed<Codes<2, 0, false>, 16>;
    case 1621: return multiply_packed<Codes<2, 1, false>, 16>;
    case 1642: return multiply_packed<Codes<4, 2, false>, 16>;
    case 3240: return multiply_packed<Codes<4, 0, false>, 32>;
    case 3241: return multiply_packed<Codes<4, 1, false>, 32>;
    case 3280: return multiply_packed<Codes<8, 0, false>, 32>;
    case 13240: return multiply_packed<Codes<4, 0, true>, 32>;
    default: return nullptr;
  }
}

MINFER_INLINE Floats activate(Product::Gate gate, const Floats& x) {
  // Both are x * sigmoid(z): GELU by tanh is that with z = 2 sqrt(2 / pi) (x + 0.044715 x^3).
  Floats z = x;
  if (gate == Product::kGelu) z = x * fma(x * x, broadcast(0.071354816f), broadcast(1.5957691f));
  return x / (broadcast(1.0f) + exp(broadcast(0.0f) - z));
}

// The 16 numbers of a tile, of which the last tile of a matrix may have fewer.
inline Floats load_lanes(const float* from, int lanes) {
  if (lanes == kTile) return load<Floats>(from);
  float padded[kTile] = {};
  for (int i = 0; i < lanes; i++) padded[i] = from[i];
  return load<Floats>(padded);
}
inline void store_lanes(float* to, const Floats& x, int lanes) {
  if (lanes == kTile) return store(to, x);
  float padded[kTile];
  store(padded, x);
  for (int i = 0; i < lanes; i++) to[i] = padded[i];
}

inline bool takes(const Matrix& w) { return multiply_of(w) != nullptr; }

// Tiles begin .. end of an output, for the rows at work.
inline void multiply(const Product& p, size_t output, int64_t begin, int64_t end) {
  thread_local Scratch scales, other_scales;
  bool gated = p.gate != Product::kNone;
  const Matrix &w = p.matrices[output], &other = p.matrices[gated ? 1 : output];
  Multiply multiply_w = multiply_of(w), multiply_other = multiply_of(other);
  for (int64_t index = begin; index < end; index++) {
    int64_t column = index * kTile;
    int lanes = int(std::min<int64_t>(kTile, w.n - column));
    Tile tile{w, index, expand_scales(w, index, scales), p.exact};
    Tile other_tile{other, index, gated ? expand_scales(other, index, other_scales) : Scales{}, p.exact};
    for (int64_t row = p.begin; row < p.end;) {
      Panel x = panel_at(p, row);
      Floats sums[kRows], others[kRows];
      multiply_w(tile, x, sums);
      if (gated) multiply_other(other_tile, x, others);
      for (int r = 0; r < x.rows; r++, row++) {
        Floats y = sums[r];
        if (w.bias) y = y + load_lanes(w.bias + column, lanes);
        if (gated) {
          Floats up = others[r];
          if (other.bias) up = up + load_lanes(other.bias + column, lanes);
          y = activate(p.gate, y) * up;
        }
        int64_t at = p.row(row) * w.n + column;
        if (p.residual && output == 0) y = y + load_lanes(p.residual + at, lanes);
        store_lanes(p.y[output] + at, y, lanes);
      }
    }
  }
}

}  // namespace minfer::MINFER_ISA
