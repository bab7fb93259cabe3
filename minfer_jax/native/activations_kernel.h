// Rows of x as the products take them.
//
// By default they become 16-bit integers with a scale for every 32 columns; in the exact mode they stay float32. Rows
// are interleaved by kRows, or by what is left over, in the order in which a product reads them.

namespace minfer::MINFER_ISA {

#if defined(MINFER_AVX512)
constexpr int kRows = 8;  // rows of x that meet a tile together: as many as have their sums in registers
#else
constexpr int kRows = 4;
#endif

// ``rows`` rows of x, interleaved in the order in which a kernel reads them.
struct Panel {
  int rows;
  int64_t k;
  char* data;

  static int64_t bytes_per_row(int64_t k, bool exact) {
    int64_t padded = (k + kBlock - 1) / kBlock * kBlock;
    return exact ? padded * 4 : padded * 2 + padded / kBlock * (1 + 3) * 4;
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
  return {panel_rows(p.end - row), p.k, p.panel + (row - p.begin) * Panel::bytes_per_row(p.k, p.exact)};
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
    MINFER_PARTS(sum.v[p] = (NativeInt)_mm256_dpbusd_avx_epi32((__m256i)sum.v[p], (__m256i)w.v[p],
                                                               _mm256_set1_epi32(x)));
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
    if (!finite) first = second = Floats{};  // they would become integers whose sums overflow
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
  int64_t begin = p.begin + group * kRows;
  for (int64_t first = begin; first < std::min(p.end, begin + kRows);) {
    Panel panel = panel_at(p, first);
    for (int row = 0; row < panel.rows; row++) {
      const float* x = p.x + p.row(first + row) * p.k;
      if (p.norm) {
        float* normed = scratch.take<float>(p.k);
        norm_row(x, p.norm, p.k, p.eps, normed);
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

inline size_t bytes_per_row(const Product& p) { return Panel::bytes_per_row(p.k, p.exact); }

}  // namespace minfer::MINFER_ISA
