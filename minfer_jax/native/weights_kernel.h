// Tiles of a matrix: its codes as bytes, its scales as numbers.

namespace minfer::MINFER_ISA {

// The codes of a tile, four columns of each row in a Words, as unsigned bytes; signed ones plus 128.
template <int low_bits, int high_bits, bool has_codebook>
struct Codes {
  const uint32_t *low, *high;
  Words table{};  // the codebook in every 16 bytes

  Codes(const Matrix& w, int64_t tile)
      : low(w.codes + tile * w.k * low_bits / 32 * kTile), high(w.codes_high + tile * w.k * high_bits / 32 * kTile) {
    if (has_codebook) table = load<Words>(w.codebook);
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

// None of a plain matrix.
inline Scales expand_scales(const Matrix& w, int64_t tile, Scratch& scratch) {
  if (w.type != Matrix::kPacked) return {};
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
      store(lowest + g * kTile, m + s * shift);
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

}  // namespace minfer::MINFER_ISA
