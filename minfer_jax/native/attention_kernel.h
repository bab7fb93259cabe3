// Causal attention of grouped query heads.
//
// Keys are taken in blocks of 32 that begin at slot 0. A score is one chain of fma over the dimensions, with keys in
// the lanes; the weights of a query are summed slot % 16 by slot % 16 and then in a tree; an output is one chain of
// fma over the keys in order, with dimensions in the lanes. What a query does not see takes no part in any of these:
// so its output is the same bit for bit in whatever company it is computed, and an invisible NaN stays invisible.

namespace minfer::MINFER_ISA {

// Heads that meet a block of keys, and 16-lane parts of their outputs that meet its values, at a time: as many as have
// their sums in registers.
#if defined(MINFER_AVX512)
constexpr int kHeads = 6, kOutputParts = 4;
#else
constexpr int kHeads = 3, kOutputParts = 1;
#endif
constexpr int kKeys = 32;
constexpr uint32_t kAllKeys = 0xffffffffu;

// tanh to three units in the last place: near 0 the polynomial of Cephes' tanhf.
MINFER_INLINE Floats tanh(const Floats& x) {
  Floats square = x * x, near = broadcast(-5.70498872745e-3f);
  for (float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) {
    near = fma(near, square, broadcast(c));
  }
  near = fma(near * square, x, x);
  Floats size = abs(x), far = broadcast(1.0f) - broadcast(2.0f) / (exp(size + size) + broadcast(1.0f));
  far = bits<Floats>(bits<Words>(far) | (bits<Words>(x) & broadcast(0x80000000u)));
  MINFER_PARTS(far.v[p] = size.v[p] < 0.625f ? near.v[p] : far.v[p]);
  return far;
}

// A head's vector x of a token, normed if there is a norm, rotated and scaled: y, which may be x.
inline void rotate(const Attention& a, const float* x, const float* norm, int64_t token, float scale, float* y) {
  if (norm) {
    norm_row(x, norm, a.dim, a.eps, y);
    x = y;
  }
  const float *cos = a.cos + token * a.half, *sin = a.sin + token * a.half;
  for (int64_t i = 0; i < a.half; i++) {
    float even = x[i], odd = x[a.half + i];
    y[i] = (even * cos[i] - odd * sin[i]) * scale;
    y[a.half + i] = (odd * cos[i] + even * sin[i]) * scale;
  }
  for (int64_t d = 2 * a.half; d < a.dim; d++) y[d] = x[d] * scale;
}

inline void narrow(const float* x, int64_t n, float* y) { __builtin_memmove(y, x, n * sizeof(float)); }

// Rounded to the nearest, ties to even.
inline void narrow(const float* x, int64_t n, BFloat16* y) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t word;
    __builtin_memcpy(&word, x + i, sizeof word);
    uint32_t rounded = (word + 0x7fff + (word >> 16 & 1)) >> 16;
    y[i].bits = x[i] == x[i] ? rounded : word >> 16 | 0x40;  // carrying on in a NaN could make it a number
  }
}

// See AttentionKernels.
template <typename Stored>
void write_keys(const Attention& a, int64_t row, int64_t head, Scratch& scratch) {
  Stored *keys = static_cast<Stored*>(a.keys) + row * a.row_stride + head * a.head_stride,
         *values = static_cast<Stored*>(a.values) + row * a.row_stride + head * a.head_stride;
  float* rotated = scratch.take<float>(a.dim);
  for (int64_t t = 0; t < a.tokens; t++) {
    int64_t token = row * a.tokens + t, from = (token * a.kv_heads + head) * a.dim;
    int64_t slot = a.cached ? a.positions[token] : t;
    if (a.positions[token] < 0 || slot >= a.slots) continue;
    rotate(a, a.k + from, a.k_norm, token, 1.0f, rotated);
    narrow(rotated, a.dim, keys + slot * a.slot_stride);
    if (a.cached) narrow(a.v + from, a.dim, values + slot * a.slot_stride);
  }
}

// Which keys of a block a query of a row sees, a bit for each.
inline uint32_t visible_keys(const Attention& a, int64_t row, int64_t query, int64_t block) {
  int64_t before = row * a.tokens, position = a.positions[before + query];
  if (position < 0) return 0;
  int64_t first = block * kKeys, reach = a.window > 0 ? a.window : int64_t{1} << 31;
  if (a.cached) {
    int64_t begin = position - reach + 1 - first, end = (position + 1 < a.slots ? position + 1 : a.slots) - first;
    if (end <= 0 || begin >= kKeys) return 0;
    return (end < kKeys ? (1u << end) - 1 : kAllKeys) & (begin > 0 ? kAllKeys << begin : kAllKeys);
  }
  const int32_t *positions = a.positions + before + first, *until = a.until ? a.until + before + first : nullptr;
  int64_t n = a.tokens - first < kKeys ? a.tokens - first : kKeys;
  uint32_t open = kAllKeys, seen = 0;
  if (until) {
    n = query + 1 - first < n ? query + 1 - first : n;
    open = 0;
    for (int64_t i = 0; i < n; i++) open |= uint32_t(until[i] > int32_t(query)) << i;
    if (!open) return 0;
  }
  for (int64_t i = 0; i < n; i++) {
    int64_t back = position - positions[i];
    seen |= uint32_t(positions[i] >= 0 && back >= 0 && back < reach) << i;
  }
  return seen & open;
}

MINFER_INLINE float widen_one(const float* from) { return *from; }
MINFER_INLINE float widen_one(const BFloat16* from) {
  uint32_t word = uint32_t{from->bits} << 16;
  float value;
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}

typedef float Quad __attribute__((vector_size(16)));
MINFER_INLINE Quad widen_quad(const float* from) { return load_native<Quad>(from); }
MINFER_INLINE Quad widen_quad(const BFloat16* from) {
  typedef uint16_t Narrow __attribute__((vector_size(8)));
  typedef uint32_t Wide __attribute__((vector_size(16)));
  return (Quad)(__builtin_convertvector(load_native<Narrow>(from), Wide) << 16);
}

// Four of the lanes of a, 0 .. 3, and b, 4 .. 7.
template <int w, int x, int y, int z>
MINFER_INLINE Quad pick(const Quad& a, const Quad& b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, w, x, y, z);
#else
  typedef int Lanes __attribute__((vector_size(16)));
  return __builtin_shuffle(a, b, Lanes{w, x, y, z});
#endif
}

// A block of n keys, [n][dim] at some stride, as [dim][32]; lanes without a key repeat the last one.
template <typename Stored>
void transpose(const Stored* keys, int64_t stride, int64_t n, int64_t dim, float* out) {
  for (int lane = 0; lane < kKeys; lane += 4) {
    const Stored* key[4];
    for (int i = 0; i < 4; i++) key[i] = keys + (lane + i < n ? lane + i : n - 1) * stride;
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
      Quad a = widen_quad(key[0] + d), b = widen_quad(key[1] + d);
      Quad c = widen_quad(key[2] + d), e = widen_quad(key[3] + d);
      Quad ab = pick<0, 4, 1, 5>(a, b), ab_high = pick<2, 6, 3, 7>(a, b);
      Quad ce = pick<0, 4, 1, 5>(c, e), ce_high = pick<2, 6, 3, 7>(c, e);
      Quad turned[4] = {pick<0, 1, 4, 5>(ab, ce), pick<2, 3, 6, 7>(ab, ce), pick<0, 1, 4, 5>(ab_high, ce_high),
                        pick<2, 3, 6, 7>(ab_high, ce_high)};
      for (int i = 0; i < 4; i++) __builtin_memcpy(out + (d + i) * kKeys + lane, &turned[i], sizeof turned[i]);
    }
    for (; d < dim; d++) {
      for (int i = 0; i < 4; i++) out[d * kKeys + lane + i] = widen_one(key[i] + d);
    }
  }
}

// Calls work(constant n) for the n given, from 1 to most.
template <int most, typename Work>
MINFER_INLINE void with_constant(int n, const Work& work) {
  if constexpr (most > 1) {
    if (n < most) return with_constant<most - 1>(n, work);
  }
  work(std::integral_constant<int, most>{});
}

// Scores of n queries [n][dim] with a transposed block of keys: [n][stride].
template <int n>
void score(const float* q, const float* keys, int64_t dim, float* scores, int64_t stride) {
  Floats sum[n][2] = {};
  for (int64_t d = 0; d < dim; d++) {
    Floats low = load<Floats>(keys + d * kKeys), high = load<Floats>(keys + d * kKeys + kLanes);
    repeat<n>([&](auto i) MINFER_ALWAYS {
      Floats x = broadcast(q[i * dim + d]);
      sum[i][0] = fma(x, low, sum[i][0]);
      sum[i][1] = fma(x, high, sum[i][1]);
    });
  }
  repeat<n>([&](auto i) MINFER_ALWAYS {
    store(scores + i * stride, sum[i][0]);
    store(scores + i * stride + kLanes, sum[i][1]);
  });
}

// Scores of one query [n][32] to weights, not yet divided by their sum, which is returned. Blocks that it does not see
// are left alone.
inline float weigh(float* scores, const uint32_t* seen, int64_t n, float softcap) {
  Floats high = broadcast(-__builtin_inff());
  for (int64_t block = 0; block < n; block++) {
    if (!seen[block]) continue;
    float* score = scores + block * kKeys;
    for (int half = 0; half < kKeys; half += kLanes) {
      Floats x = load<Floats>(score + half);
      if (softcap) x = tanh(x / broadcast(softcap)) * broadcast(softcap);
      store(score + half, x);
    }
    if (seen[block] != kAllKeys) {
      for (int i = 0; i < kKeys; i++) score[i] = seen[block] >> i & 1 ? score[i] : -__builtin_inff();
    }
    high = max(high, max(load<Floats>(score), load<Floats>(score + kLanes)));
  }
  Floats highest = broadcast(max_of_lanes(high)), sum{};
  for (int64_t block = 0; block < n; block++) {
    if (!seen[block]) continue;
    for (int half = 0; half < kKeys; half += kLanes) {
      Floats weight = exp(load<Floats>(scores + block * kKeys + half) - highest);
      store(scores + block * kKeys + half, weight);
      sum = sum + weight;
    }
  }
  return sum_of_lanes(sum);
}

// Adds the values [32][16 * parts] at a stride of those keys of a block that n queries see, times their weights, to
// their sums.
template <int n, int parts, typename Value>
void add_values(const float* weights, int64_t weight_stride, uint32_t seen, const Value* values, int64_t stride,
                float* sums, int64_t sum_stride) {
  Floats sum[n][parts];
  auto each = [&](const auto& action) MINFER_ALWAYS {
    repeat<n>([&](auto i) MINFER_ALWAYS { repeat<parts>([&](auto c) MINFER_ALWAYS { action(i, c); }); });
  };
  each([&](auto i, auto c) MINFER_ALWAYS { sum[i][c] = load<Floats>(sums + i * sum_stride + c * kLanes); });
  for (; seen; seen &= seen - 1) {
    int key = __builtin_ctz(seen);
    Floats value[parts];
    repeat<parts>([&](auto c) MINFER_ALWAYS { value[c] = widen(values + key * stride + c * kLanes); });
    repeat<n>([&](auto i) MINFER_ALWAYS {
      Floats weight = broadcast(weights[i * weight_stride + key]);
      repeat<parts>([&](auto c) MINFER_ALWAYS { sum[i][c] = fma(weight, value[c], sum[i][c]); });
    });
  }
  each([&](auto i, auto c) MINFER_ALWAYS { store(sums + i * sum_stride + c * kLanes, sum[i][c]); });
}
template <int n, typename Value>
void add_values(const float* weights, int64_t weight_stride, uint32_t seen, const Value* values, int64_t stride,
                float* sums, int64_t padded) {
  for (int64_t d = 0; d < padded; d += kOutputParts * kLanes) {
    with_constant<kOutputParts>((padded - d) / kLanes, [&](auto parts) {
      add_values<n, parts>(weights, weight_stride, seen, values + d, stride, sums + d, padded);
    });
  }
}

// See AttentionKernels.
template <typename Stored>
void attend(const Attention& a, int64_t row, int64_t head, int64_t i, Scratch& scratch) {
  int64_t left = a.tokens - i * a.queries, dim = a.dim, padded = (dim + kLanes - 1) / kLanes * kLanes;
  int64_t queries = left < a.queries ? left : a.queries, heads = queries * a.group;
  int64_t start = i * a.queries, token = row * a.tokens + start;
  const int32_t* positions = a.positions + token;
  int64_t slots = 0;  // that any of them may see
  for (int64_t query = 0; query < queries; query++) {
    int64_t end = a.cached ? positions[query] + int64_t{1} : a.until ? start + query + 1 : a.slots;
    if (positions[query] < 0) end = 0;
    slots = end > slots ? end : slots;
  }
  slots = slots < a.slots ? slots : a.slots;
  int64_t blocks = (slots + kKeys - 1) / kKeys, width = blocks * kKeys;

  // q [heads][dim], scores or weights [heads][width], their sums [heads], sums of values [heads][padded]; a block of
  // keys [dim][32]; one of values [32][padded], if dimensions do not fill the lanes; keys seen [queries][blocks].
  float* q = scratch.take<float>(heads * (dim + width + 1 + padded) + kKeys * (dim + padded) + queries * blocks);
  float *scores = q + heads * dim, *totals = scores + heads * width, *sums = totals + heads;
  float *turned = sums + heads * padded, *filled = turned + kKeys * dim;
  auto* seen = reinterpret_cast<uint32_t*>(filled + kKeys * padded);
  auto of_token = [&](int64_t h) { return ((token + h / a.group) * a.kv_heads + head) * a.group + h % a.group; };

  for (int64_t h = 0; h < heads; h++) {
    rotate(a, a.q + of_token(h) * dim, a.q_norm, token + h / a.group, a.scale, q + h * dim);
  }
  for (int64_t query = 0; query < queries; query++) {
    for (int64_t block = 0; block < blocks; block++) {
      seen[query * blocks + block] = visible_keys(a, row, start + query, block);
    }
  }
  // Calls work(constant n, h, keys) for every n heads from h on that meet a block together and see any keys of it: the
  // keys that they all see, or 0 where they differ.
  auto for_heads = [&](int64_t block, const auto& work) {
    int64_t tiles = (heads + kHeads - 1) / kHeads;
    for (int64_t tile = 0; tile < tiles; tile++) {
      int64_t h = heads * tile / tiles, end = heads * (tile + 1) / tiles;
      uint32_t any = 0, all = kAllKeys;
      for (int64_t query = h / a.group; query * a.group < end; query++) {
        any |= seen[query * blocks + block];
        all &= seen[query * blocks + block];
      }
      if (any) with_constant<kHeads>(end - h, [&](auto n) { work(n, h, any == all ? all : 0); });
    }
  };

  int64_t offset = row * a.row_stride + head * a.head_stride, stride = a.slot_stride;
  auto *keys = static_cast<const Stored*>(a.keys) + offset, *values = static_cast<const Stored*>(a.values) + offset;
  for (int64_t block = 0; block < blocks; block++) {
    bool ready = false;
    for_heads(block, [&](auto n, int64_t h, uint32_t) {
      if (!ready) transpose(keys + block * kKeys * stride, stride, slots - block * kKeys, dim, turned);
      ready = true;
      score<n>(q + h * dim, turned, dim, scores + h * width + block * kKeys, width);
    });
  }
  for (int64_t h = 0; h < heads; h++) {
    totals[h] = weigh(scores + h * width, seen + h / a.group * blocks, blocks, a.softcap);
  }
  __builtin_memset(sums, 0, heads * padded * sizeof(float));
  auto add = [&](int64_t block, const auto* value, int64_t stride) {
    for_heads(block, [&](auto n, int64_t h, uint32_t all) {
      const float* weights = scores + h * width + block * kKeys;
      if (all) return add_values<n>(weights, width, all, value, stride, sums + h * padded, padded);
      for (int i = 0; i < n; i++) {
        uint32_t own = seen[(h + i) / a.group * blocks + block];
        add_values<1>(weights + i * width, width, own, value, stride, sums + (h + i) * padded, padded);
      }
    });
  };
  for (int64_t block = 0; block < blocks; block++) {
    const Stored* value = values + block * kKeys * stride;
    if (dim == padded) {
      add(block, value, stride);
    } else {
      for (int64_t key = 0; key < kKeys && block * kKeys + key < slots; key++) {
        for (int64_t d = 0; d < dim; d++) filled[key * padded + d] = widen_one(value + key * stride + d);
      }
      add(block, filled, padded);
    }
  }
  for (int64_t h = 0; h < heads; h++) {  // a query that sees nothing has a total of 0
    float* out = a.out + of_token(h) * dim;
    for (int64_t d = 0; d < dim; d++) out[d] = totals[h] == 0 ? 0.0f : sums[h * padded + d] / totals[h];
  }
}

constexpr AttentionKernels kAttention = {
    [](const Attention& a, int64_t row, int64_t head, Scratch& scratch) {
      a.narrow ? write_keys<BFloat16>(a, row, head, scratch) : write_keys<float>(a, row, head, scratch);
    },
    [](const Attention& a, int64_t row, int64_t head, int64_t i, Scratch& scratch) {
      a.narrow ? attend<BFloat16>(a, row, head, i, scratch) : attend<float>(a, row, head, i, scratch);
    },
};

}  // namespace minfer::MINFER_ISA
