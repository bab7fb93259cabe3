// Products of rows of x with tiles of a quantised matrix.
//
// A tile is 16 rows of the matrix, one a lane, so no sum ever crosses lanes. By default x is made 16-bit integers with
// a scale for every 32 columns: the products of a block with its codes are exact integers, which a processor adds four
// at a time; blocks are added in float32, in order. In the exact mode, and for weights that are plain numbers, x stays
// float32 and weights are expanded exactly, column by column. In both a result depends on the row of x and the row of
// the matrix alone.

namespace minfer::MINFER_ISA {

#if defined(MINFER_AVX512)
constexpr int kRows = 8;  // rows of x that meet a tile together: as many as have their sums in registers
#else
constexpr int kRows = 4;
#endif

// --- x ------------------------------------------------------------------------------------------------------------

// ``rows`` rows of x, interleaved in the order in which a kernel reads them.
struct Panel {
  int rows;
  int64_t k;
  char* data;

  static int64_t bytes_per_row(int64_t k, bool exact) {
    int64_t padded = (k + kBlock - 1) / kBlock * kBlock;
    return exact ? padded * 4 : padded * 2 + padded / kBlock * 4 * 4;
  }
  // Exact: [k][rows].
  float* values() const { return reinterpret_cast<float*>(data); }
  // Else: four columns at a time, [k / 4][rows] pairs of words as Dot::add takes them; the scale of every block
  // [k / 32][rows]; scale times the sum of the integers, for every block and for both its halves [k / 32][3][rows].
  uint32_t* digits() const { return reinterpret_cast<uint32_t*>(data); }
  float* scales() const { return reinterpret_cast<float*>(data + 2 * k * rows); }
  float* sums() const { return scales() + k / kBlock * rows; }
};

// How m rows are cut into panels: kRows at a time, then 4, 2, 1.
MINFER_INLINE int panel_rows(int64_t left) {
  int rows = kRows;
  while (rows > left) rows /= 2;
  return rows;
}

inline Panel panel_at(const Product& p, int64_t row) {
  return {panel_rows(p.m - row), p.k, p.panel + row * Panel::bytes_per_row(p.k, p.exact)};
}

// Eight bytes, over and over.
struct Repeated {
  uint8_t bytes[64] = {};

  explicit constexpr Repeated(const uint8_t (&eight)[8]) {
    for (int i = 0; i < 64; i++) bytes[i] = eight[i % 8];
  }
};

// Sums of four products of a byte of the matrix, 0 .. 255, and a 16-bit integer, in every lane.
struct Dot {
#if defined(MINFER_AVX512) || defined(MINFER_AVXVNNI)
  Ints high{}, low{};  // of the integer's upper and lower 8 bits, both signed

  MINFER_INLINE void add(const Words& w, const uint32_t* x) {
    multiply(high, w, x[0]);
    multiply(low, w, x[1]);
  }
  MINFER_INLINE static void multiply(Ints& sum, const Words& w, uint32_t x) {
#if defined(MINFER_AVX512)
    sum.v[0] = (NativeInt)_mm512_dpbusd_epi32((__m512i)sum.v[0], (__m512i)w.v[0], _mm512_set1_epi32(x));
#else
    MINFER_PARTS(sum.v[p] = (NativeInt)_mm256_dpbusd_avx_epi32((__m256i)sum.v[p], (__m256i)w.v[p], _mm256_set1_epi32(x)));
#endif
  }
  MINFER_INLINE Ints total() const { return bits<Ints>(shift_left(bits<Words>(high), 8)) + low; }

  // Of four integers with 128 added, which carries into the upper byte what is negative in the lower: upper bytes, and
  // lower bytes, whose sign the addition has turned.
  static constexpr uint8_t kOrder[8] = {1, 5, 9, 13, 0, 4, 8, 12};
  static constexpr uint32_t kAdded = 128, kTurned = 0x80808080;
#else
  Ints sum{};

  MINFER_INLINE void add(const Words& w, const uint32_t* x) {
    const Words even = broadcast(0x00ff00ffu);
    sum = sum + multiply(w & even, x[0]) + multiply(shift_right(w, 8) & even, x[1]);
  }
  // Products of pairs of 16-bit integers, added.
  MINFER_INLINE static Ints multiply(const Words& w, uint32_t x) {
    Ints y;
#if defined(MINFER_AVX2)
    MINFER_PARTS(y.v[p] = (NativeInt)_mm256_madd_epi16((__m256i)w.v[p], _mm256_set1_epi32(x)));
#elif defined(__x86_64__)
    MINFER_PARTS(y.v[p] = (NativeInt)_mm_madd_epi16((__m128i)w.v[p], _mm_set1_epi32(x)));
#else
    MINFER_PARTS(y.v[p] = (NativeInt)(w.v[p] & 0xffffu) * int16_t(x) + (NativeInt)(w.v[p] >> 16) * int16_t(x >> 16));
#endif
    return y;
  }
  MINFER_INLINE Ints total() const { return sum; }

  static constexpr uint8_t kOrder[8] = {0, 1, 8, 9, 4, 5, 12, 13};  // 16-bit integers of four of 32 bits
  static constexpr uint32_t kAdded = 0, kTurned = 0;
#endif

  // 16 integers as add() takes them, four at a time, ``stride`` words apart.
  MINFER_INLINE static void pack(const Ints& x, uint32_t* digits, int stride) {
    static constexpr Repeated order(kOrder);
    Words ordered = bytes_at(bits<Words>(x) + broadcast(kAdded), load<Words>(order.bytes));
    uint64_t pairs[2 * 4];
    store(pairs, ordered);
    for (int i = 0; i < 4; i++) {
      uint64_t pair = pairs[2 * i] ^ uint64_t(kTurned) << 32;
      std::memcpy(digits + i * stride, &pair, sizeof pair);
    }
  }
};

// 1 / RMS of a row, with eps.
inline float norm_factor(const float* x, int64_t k, float eps) {
  Floats sum{};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Floats v = load<Floats>(x + i);
    sum = fma(v, v, sum);
  }
  float tail[kLanes] = {};
  for (int j = 0; i < k; i++, j++) tail[j] = x[i];
  Floats v = load<Floats>(tail);
  return 1 / std::sqrt(sum_of_lanes(fma(v, v, sum)) / float(k) + eps);
}

constexpr float kLargestInteger = 127 * 256 + 127;  // its lower 8 bits, as a signed byte, do not overflow the upper

// Integers, scales and sums of one row.
inline void quantize_row(const float* x, const Panel& panel, int row) {
  int rows = panel.rows, stride = 2 * rows;  // of a pair of words
  uint32_t* digits = panel.digits() + 2 * row;
  float *scales = panel.scales() + row, *sums = panel.sums() + row;
  for (int64_t b = 0; b < panel.k / kBlock; b++, x += kBlock) {
    Floats first = load<Floats>(x), second = load<Floats>(x + kLanes);
    // The largest magnitude by its bits, among which NaN is the largest of all and infinity comes next: what is not
    // finite must not become a finite number, and makes the whole block NaN.
    int32_t magnitude = max_of_lanes(max(bits<Ints>(abs(first)), bits<Ints>(abs(second))));
    float largest;
    std::memcpy(&largest, &magnitude, sizeof largest);
    bool finite = largest <= std::numeric_limits<float>::max();
    float inverse = finite && largest > 1e-30f ? kLargestInteger / largest : 0;  // smaller ones are as good as zero
    float scale = finite ? largest / kLargestInteger : std::numeric_limits<float>::quiet_NaN();
    Ints a = round(first * broadcast(inverse)), c = round(second * broadcast(inverse));
    Dot::pack(a, digits, stride);
    Dot::pack(c, digits + 4 * stride, stride);
    int32_t left = sum_of_lanes(a), right = sum_of_lanes(c);
    *scales = scale;
    sums[0] = float(left + right) * scale;  // a sum of 32 such integers is exact in float32
    sums[rows] = float(left) * scale;
    sums[2 * rows] = float(right) * scale;
    digits += 8 * stride, scales += rows, sums += 3 * rows;
  }
}

inline void prepare(const Product& p, int64_t group) {
  thread_local Scratch scratch;
  for (int64_t first = group * kRows; first < std::min(p.m, (group + 1) * kRows);) {
    Panel panel = panel_at(p, first);
    for (int row = 0; row < panel.rows; row++) {
      const float* x = p.x + (first + row) * p.k;
      if (p.norm) {
        float* normed = scratch.take<float>(p.k);
        float factor = norm_factor(x, p.k, p.eps);
        for (int64_t i = 0; i < p.k; i++) normed[i] = x[i] * factor * p.norm[i];
        x = normed;
      }
      if (p.exact) {
        for (int64_t i = 0; i < p.k; i++) panel.values()[i * panel.rows + row] = x[i];
      } else {
        quantize_row(x, panel, row);
      }
    }
    first += panel.rows;
  }
}

inline size_t panel_bytes(const Product& p) { return p.m * Panel::bytes_per_row(p.k, p.exact); }

// --- weights ------------------------------------------------------------------------------------------------------

// The codes of a tile, four columns of each row in a Words, as unsigned bytes; signed ones plus 128.
template <int low_bits, int high_bits, bool has_codebook>
struct Codes {
  const uint32_t *low, *high;
  Words table{};  // the codebook in every 16 bytes

  Codes(const Matrix& w, int64_t tile)
      : low(w.codes + tile * w.k * low_bits / 32 * kTile), high(w.codes_high + tile * w.k * high_bits / 32 * kTile) {
    if (has_codebook) {
      uint8_t entries[64];
      for (int i = 0; i < 64; i++) entries[i] = uint8_t(w.codebook[i % 16] + 128);
      table = load<Words>(entries);
    }
  }

  // Columns 4 v .. 4 v + 3 of block b.
  MINFER_INLINE Words at(int64_t b, int v) const {
    Words codes = load<Words>(low + (b * low_bits + v * low_bits / 8) * kTile);
    if (low_bits == 8) return codes ^ broadcast(0x80808080u);
    codes = shift_right(codes, v * low_bits % 8) & every_byte((1 << low_bits) - 1);
    if (high_bits) {
      Words more = load<Words>(high + (b * high_bits + v * high_bits / 8) * kTile);
      int shift = v * high_bits % 8 - low_bits;
      more = shift > 0 ? shift_right(more, shift) : shift_left(more, -shift);
      codes = codes | (more & every_byte(((1 << high_bits) - 1) << low_bits));
    }
    return has_codebook ? bytes_at(table, codes) : codes;
  }

  // Asks for block b, which is not needed yet.
  MINFER_INLINE void prefetch(int64_t b) const {
    repeat<low_bits>([&](auto i) MINFER_ALWAYS { __builtin_prefetch(low + (b * low_bits + i) * kTile); });
    repeat<high_bits>([&](auto i) MINFER_ALWAYS { __builtin_prefetch(high + (b * high_bits + i) * kTile); });
  }

  MINFER_INLINE static Words every_byte(uint32_t byte) { return broadcast(byte * 0x01010101u); }
};

// Of every group of columns and every row of a tile: weight = code * step + lowest, with codes as above.
struct Scales {
  const float *step, *lowest;  // [k / group][16]
};

inline Scales expand_scales(const Matrix& w, int64_t tile) {
  thread_local Scratch scratch;
  int64_t groups = w.k / w.group, blocks = w.k / w.block;
  float *step = scratch.take<float>(groups * kTile * 2), *lowest = step + groups * kTile;
  int offset = w.offset + (w.has_codebook || w.low == 8 ? 128 : 0);
  const Floats shift = broadcast(-float(offset));
  for (int64_t b = 0; b < blocks; b++) {
    int64_t at = (tile * blocks + b) * kTile;
    Floats d = w.d_is_exponent ? half_of_power(static_cast<const uint8_t*>(w.d) + at)
                               : widen(static_cast<const Float16*>(w.d) + at);
    Floats least{};
    if (w.dmin) least = widen(static_cast<const Float16*>(w.dmin) + at) * broadcast(float(w.min_sign));
    for (int64_t g = b * (w.block / w.group); g < (b + 1) * (w.block / w.group); g++) {
      int64_t within = (tile * groups + g) * kTile;
      Floats s = d, m = least;
      if (w.scales) {
        s = d * (w.scales_are_signed ? widen(static_cast<const int8_t*>(w.scales) + within)
                                     : widen(static_cast<const uint8_t*>(w.scales) + within));
      }
      if (w.mins) m = least * widen(w.mins + within);
      store(step + g * kTile, s);
      store(lowest + g * kTile, w.dmin ? m : s * shift);
    }
  }
  return {step, lowest};
}

// 32 columns of a tile as numbers, from block b on.
template <typename Codes>
struct PackedColumns {
  Codes codes;
  Scales scales;
  int group;

  MINFER_INLINE void expand(int64_t b, Floats* columns) const {
    for (int v = 0; v < kBlock / 4; v++) {
      Words four = codes.at(b, v);
      int64_t g = (b * kBlock + v * 4) / group;
      Floats step = load<Floats>(scales.step + g * kTile), lowest = load<Floats>(scales.lowest + g * kTile);
      for (int i = 0; i < 4; i++) {
        Ints code = bits<Ints>(shift_right(four, 8 * i) & broadcast(255u));
        columns[4 * v + i] = fma(to_floats(code), step, lowest);  // exact, as gguf.quants.dequantize
      }
    }
  }
};

template <typename Number>
struct PlainColumns {
  const Number* values;
  int64_t k;

  MINFER_INLINE void expand(int64_t b, Floats* columns) const {
    for (int i = 0; i < std::min<int64_t>(kBlock, k - b * kBlock); i++) {
      columns[i] = widen(values + (b * kBlock + i) * kTile);
    }
  }
};

// --- products -----------------------------------------------------------------------------------------------------

constexpr int kAhead = 24;  // blocks between a prefetch and its use: about 6 KB

template <int rows, int group, typename Codes>
MINFER_INLINE void multiply_integers(const Codes& codes, const Scales& scales, const Panel& x, Floats* sums) {
  Floats sum[rows] = {};
  const uint32_t* digits = x.digits();
  const float *scale = x.scales(), *total = x.sums();
  const float *step = scales.step, *lowest = scales.lowest;
  for (int64_t b = 0; b < x.k / kBlock; b++) {
    if (rows <= 2) codes.prefetch(b + kAhead);
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

// Calls action with a constant, the number of rows.
template <typename Action>
MINFER_INLINE void with_rows(int rows, const Action& action) {
  switch (rows) {
    case 8: return action(std::integral_constant<int, kRows == 8 ? 8 : 4>());
    case 4: return action(std::integral_constant<int, 4>());
    case 2: return action(std::integral_constant<int, 2>());
    default: return action(std::integral_constant<int, 1>());
  }
}

// A tile of a matrix, ready to be multiplied with panel after panel.
template <typename Codes, int group>
void multiply_packed(const Product& p, const Matrix& w, int64_t tile, int64_t from, int64_t to, Floats* sums) {
  Codes codes(w, tile);
  Scales scales = expand_scales(w, tile);
  while (from < to) {
    Panel x = panel_at(p, from);
    with_rows(x.rows, [&](auto rows) {
      if (p.exact) {
        multiply_floats<rows>(PackedColumns<Codes>{codes, scales, group}, x, sums);
      } else {
        multiply_integers<rows, group>(codes, scales, x, sums);
      }
    });
    from += x.rows, sums += x.rows;
  }
}

template <typename Number>
void multiply_plain(const Product& p, const Matrix& w, int64_t tile, int64_t from, int64_t to, Floats* sums) {
  PlainColumns<Number> columns{static_cast<const Number*>(w.values) + tile * w.k * kTile, w.k};
  while (from < to) {
    Panel x = panel_at(p, from);
    with_rows(x.rows, [&](auto rows) { multiply_floats<rows>(columns, x, sums); });
    from += x.rows, sums += x.rows;
  }
}

// sums[to - from]: of one tile and each row of x.
inline void multiply_tile(const Product& p, const Matrix& w, int64_t tile, int64_t from, int64_t to, Floats* sums) {
  auto run = [&](auto kernel) { kernel(p, w, tile, from, to, sums); };
  switch (w.type) {
    case Matrix::kF32: return run(multiply_plain<float>);
    case Matrix::kF16: return run(multiply_plain<Float16>);
    case Matrix::kBF16: return run(multiply_plain<BFloat16>);
    case Matrix::kPacked: break;
  }
  switch (w.low * 10 + w.high) {
    case 20: return run(multiply_packed<Codes<2, 0, false>, 16>);
    case 21: return run(multiply_packed<Codes<2, 1, false>, 16>);
    case 40: return w.has_codebook ? run(multiply_packed<Codes<4, 0, true>, 32>) : run(multiply_packed<Codes<4, 0, false>, 32>);
    case 41: return run(multiply_packed<Codes<4, 1, false>, 32>);
    case 42: return run(multiply_packed<Codes<4, 2, false>, 16>);
    case 80: return run(multiply_packed<Codes<8, 0, false>, 32>);
  }
}

// --- outputs ------------------------------------------------------------------------------------------------------

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

inline void multiply(const Product& p, size_t output, int64_t begin, int64_t end, int64_t from, int64_t to) {
  thread_local Scratch scratch;
  Floats *sums = scratch.take<Floats>(2 * (to - from)), *others = sums + (to - from);
  const Matrix& w = p.matrices[output];
  for (int64_t tile = begin; tile < end; tile++) {
    int lanes = int(std::min<int64_t>(kTile, w.n - tile * kTile));
    multiply_tile(p, w, tile, from, to, sums);
    if (p.gate != Product::kNone) multiply_tile(p, p.matrices[1], tile, from, to, others);
    for (int64_t i = 0; i < to - from; i++) {
      Floats y = sums[i];
      if (w.bias) y = y + load_lanes(w.bias + tile * kTile, lanes);
      if (p.gate != Product::kNone) {
        Floats up = others[i];
        if (p.matrices[1].bias) up = up + load_lanes(p.matrices[1].bias + tile * kTile, lanes);
        y = activate(p.gate, y) * up;
      }
      int64_t at = (from + i) * w.n + tile * kTile;
      if (p.residual && output == 0) y = y + load_lanes(p.residual + at, lanes);
      store_lanes(p.y[output] + at, y, lanes);
    }
  }
}

}  // namespace minfer::MINFER_ISA
