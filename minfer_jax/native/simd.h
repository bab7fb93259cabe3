// Sixteen lanes of numbers, on whatever vector unit the including file is compiled for.
//
// A kernel file is compiled once per instruction set, each in a namespace of its own (see kernels_*.cc), and one of
// them is chosen at run time. Arithmetic is the compiler's own on vectors of the native width, the same code
// everywhere; intrinsics appear only where the language has no word for an instruction. No operation ever combines
// lanes except where its name says so, and each is a fixed sequence: results do not depend on how it is used.
//
// Includes nothing but what dispatch.h has included already, outside of any instruction set.

namespace minfer::MINFER_ISA {

#if defined(MINFER_AVX512)
constexpr int kWidth = 64;  // bytes of a native vector
#elif defined(MINFER_AVX2)
constexpr int kWidth = 32;
#else
constexpr int kWidth = 16;
#endif
constexpr int kLanes = kTile;
constexpr int kParts = 64 / kWidth;

typedef float NativeFloat __attribute__((vector_size(kWidth)));
typedef int32_t NativeInt __attribute__((vector_size(kWidth)));
typedef uint32_t NativeWord __attribute__((vector_size(kWidth)));

// 16 floats, 16 signed and 16 unsigned integers of 32 bits.
struct Floats {
  NativeFloat v[kParts];
};
struct Ints {
  NativeInt v[kParts];
};
struct Words {
  NativeWord v[kParts];
};

#if defined(__SANITIZE_ADDRESS__)  // checks of every access, inlined over and over, take minutes to compile
#define MINFER_INLINE inline
#define MINFER_ALWAYS
#else
#define MINFER_INLINE inline __attribute__((always_inline))
#define MINFER_ALWAYS __attribute__((always_inline))  // of a lambda
#endif

// Calls action(0), .. action(n - 1), written out with constants, so that arrays which they index stay in registers.
template <typename Action, int... i>
MINFER_INLINE void repeat(const Action& action, std::integer_sequence<int, i...>) {
  (action(std::integral_constant<int, i>()), ...);
}
template <int n, typename Action>
MINFER_INLINE void repeat(const Action& action) {
  repeat(action, std::make_integer_sequence<int, n>());
}

// A statement for each native vector p of 16 lanes.
#define MINFER_PARTS(statement) repeat<kParts>([&](auto p) MINFER_ALWAYS { statement; })

template <typename To, typename From>
MINFER_INLINE To bits(const From& from) {
  To to;
  MINFER_PARTS(to.v[p] = (decltype(+to.v[p]))from.v[p]);
  return to;
}

// From and to any address.
template <typename Vector>
MINFER_INLINE Vector load(const void* from) {
  Vector x;
  MINFER_PARTS(__builtin_memcpy(&x.v[p], static_cast<const char*>(from) + p * kWidth, kWidth));
  return x;
}
template <typename Narrow>
MINFER_INLINE Narrow load_native(const void* from) {
  Narrow x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

template <typename Vector>
MINFER_INLINE void store(void* to, const Vector& x) {
  MINFER_PARTS(__builtin_memcpy(static_cast<char*>(to) + p * kWidth, &x.v[p], kWidth));
}

MINFER_INLINE Floats broadcast(float x) {
  Floats y;
  MINFER_PARTS(y.v[p] = x - NativeFloat{});
  return y;
}
MINFER_INLINE Words broadcast(uint32_t x) {
  Words y;
  MINFER_PARTS(y.v[p] = x - NativeWord{});
  return y;
}

#define MINFER_BINARY(Type, op)                               \
  MINFER_INLINE Type operator op(const Type& a, const Type& b) { \
    Type y;                                                   \
    MINFER_PARTS(y.v[p] = a.v[p] op b.v[p]);                  \
    return y;                                                 \
  }
MINFER_BINARY(Floats, +)
MINFER_BINARY(Floats, -)
MINFER_BINARY(Floats, *)
MINFER_BINARY(Floats, /)
MINFER_BINARY(Ints, +)
MINFER_BINARY(Words, +)
MINFER_BINARY(Words, &)
MINFER_BINARY(Words, |)
MINFER_BINARY(Words, ^)
#undef MINFER_BINARY

MINFER_INLINE Words shift_left(const Words& x, int n) {
  Words y;
  MINFER_PARTS(y.v[p] = x.v[p] << n);
  return y;
}
MINFER_INLINE Words shift_right(const Words& x, int n) {
  Words y;
  MINFER_PARTS(y.v[p] = x.v[p] >> n);
  return y;
}

// Of floats: b where a is not a number.
MINFER_INLINE Floats max(const Floats& a, const Floats& b) {
  Floats y;
  MINFER_PARTS(y.v[p] = a.v[p] > b.v[p] ? a.v[p] : b.v[p]);
  return y;
}
MINFER_INLINE Ints max(const Ints& a, const Ints& b) {
  Ints y;
  MINFER_PARTS(y.v[p] = a.v[p] > b.v[p] ? a.v[p] : b.v[p]);
  return y;
}
MINFER_INLINE Floats min(const Floats& a, const Floats& b) {
  Floats y;
  MINFER_PARTS(y.v[p] = a.v[p] < b.v[p] ? a.v[p] : b.v[p]);
  return y;
}

MINFER_INLINE Floats abs(const Floats& x) { return bits<Floats>(bits<Words>(x) & broadcast(0x7fffffffu)); }

MINFER_INLINE Floats to_floats(const Ints& x) {
  Floats y;
  MINFER_PARTS(y.v[p] = __builtin_convertvector(x.v[p], NativeFloat));
  return y;
}

// a * b + c, rounded once where the processor can.
MINFER_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  Floats y;
#if defined(MINFER_AVX512)
  y.v[0] = (NativeFloat)_mm512_fmadd_ps((__m512)a.v[0], (__m512)b.v[0], (__m512)c.v[0]);
#elif defined(MINFER_AVX2)
  MINFER_PARTS(y.v[p] = (NativeFloat)_mm256_fmadd_ps((__m256)a.v[p], (__m256)b.v[p], (__m256)c.v[p]));
#elif defined(__aarch64__)
  MINFER_PARTS(y.v[p] = (NativeFloat)vfmaq_f32((float32x4_t)c.v[p], (float32x4_t)a.v[p], (float32x4_t)b.v[p]));
#else
  MINFER_PARTS(y.v[p] = a.v[p] * b.v[p] + c.v[p]);
#endif
  return y;
}

// The nearest integers, ties to even, of floats below 2^22.
MINFER_INLINE Ints round(const Floats& x) {
  const Floats magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it leaves the integer in the low bits
  return bits<Ints>(bits<Words>(x + magic) + broadcast(0u - 0x4b400000u));
}

// In every 16 bytes: the bytes at those places, 0 .. 15.
MINFER_INLINE Words bytes_at(const Words& bytes, const Words& places) {
  Words y;
#if defined(MINFER_AVX512)
  y.v[0] = (NativeWord)_mm512_shuffle_epi8((__m512i)bytes.v[0], (__m512i)places.v[0]);
#elif defined(MINFER_AVX2)
  MINFER_PARTS(y.v[p] = (NativeWord)_mm256_shuffle_epi8((__m256i)bytes.v[p], (__m256i)places.v[p]));
#elif defined(__aarch64__)
  MINFER_PARTS(y.v[p] = (NativeWord)vqtbl1q_u8((uint8x16_t)bytes.v[p], (uint8x16_t)places.v[p]));
#else
  uint8_t from[64], at[64], to[64];
  store(from, bytes);
  store(at, places);
  for (int i = 0; i < 64; i++) to[i] = from[i / 16 * 16 + at[i]];
  y = load<Words>(to);
#endif
  return y;
}

// All lanes as one, by ``op``, halved again and again.
template <typename Vector, typename Op>
MINFER_INLINE auto reduce(const Vector& x, const Op& op) {
  auto lane = x.v[0][0];
  typedef decltype(lane) Four __attribute__((vector_size(16)));
#if defined(MINFER_AVX512) || defined(MINFER_AVX2)
  typedef decltype(lane) Eight __attribute__((vector_size(32)));
#if defined(MINFER_AVX512)
  __m512i all = (__m512i)x.v[0];
  Eight eight = op((Eight)_mm512_castsi512_si256(all), (Eight)_mm512_extracti32x8_epi32(all, 1));
#else
  Eight eight = op(x.v[0], x.v[1]);
#endif
  Four four = op((Four)_mm256_castsi256_si128((__m256i)eight), (Four)_mm256_extracti128_si256((__m256i)eight, 1));
#else
  Four four = op(op(x.v[0], x.v[2]), op(x.v[1], x.v[3]));
#endif
  return op(op(four[0], four[2]), op(four[1], four[3]));
}
MINFER_INLINE float sum_of_lanes(const Floats& x) {
  return reduce(x, [](auto a, auto b) MINFER_ALWAYS { return a + b; });
}
MINFER_INLINE int32_t sum_of_lanes(const Ints& x) {
  return reduce(x, [](auto a, auto b) MINFER_ALWAYS { return a + b; });
}
template <typename Vector>
MINFER_INLINE auto max_of_lanes(const Vector& x) {
  return reduce(x, [](auto a, auto b) MINFER_ALWAYS { return a > b ? a : b; });
}

// 16 numbers of a narrower type, widened exactly.
MINFER_INLINE Floats widen(const float* from) { return load<Floats>(from); }

MINFER_INLINE Words widen_words(const uint16_t* from) {
  typedef uint16_t Narrow __attribute__((vector_size(kWidth / 2)));
  Words y;
  MINFER_PARTS(y.v[p] = __builtin_convertvector(load_native<Narrow>(from + p * (kWidth / 4)), NativeWord));
  return y;
}

struct BFloat16 {
  uint16_t bits;
};
MINFER_INLINE Floats widen(const BFloat16* from) {
  return bits<Floats>(shift_left(widen_words(reinterpret_cast<const uint16_t*>(from)), 16));
}

struct Float16 {
  uint16_t bits;
};
MINFER_INLINE Floats widen(const Float16* from) {
#if defined(MINFER_AVX512)
  Floats y;
  y.v[0] = (NativeFloat)_mm512_maskz_cvtph_ps(0xffff, load_native<__m256i>(from));
  return y;
#elif defined(MINFER_AVX2)
  Floats y;
  MINFER_PARTS(y.v[p] = (NativeFloat)_mm256_cvtph_ps(load_native<__m128i>(from + 8 * p)));
  return y;
#else
  // Exponent and mantissa move to their places, and the exponent's bias is set right; infinities and NaN get the
  // largest exponent. Under XLA processors take subnormal floats for zero: a subnormal half gets an exponent first, and
  // what that adds is taken off again.
  Words half = widen_words(reinterpret_cast<const uint16_t*>(from));
  Words magnitude = shift_left(half & broadcast(0x7fffu), 13), sign = shift_left(half & broadcast(0x8000u), 16);
  Words small = bits<Words>(bits<Floats>(magnitude + broadcast(0x38800000u)) - broadcast(6.103515625e-5f));
  Words result;
  MINFER_PARTS(result.v[p] = magnitude.v[p] < 0x00800000u    ? small.v[p]
                             : magnitude.v[p] >= 0x0f800000u ? magnitude.v[p] | 0x7f800000u
                                                             : magnitude.v[p] + 0x38000000u);
  return bits<Floats>(result | sign);
#endif
}

// Half of 2^(e - 127) by its bits, subnormal numbers included: the scale of MX formats with doubled codebooks.
MINFER_INLINE Floats half_of_power(const uint8_t* from) {
  Words e;
  typedef uint8_t Narrow __attribute__((vector_size(kWidth / 4)));
  MINFER_PARTS(e.v[p] = __builtin_convertvector(load_native<Narrow>(from + p * (kWidth / 4)), NativeWord));
  Words result;
  MINFER_PARTS(result.v[p] = e.v[p] < 2u ? 0x00200000u << e.v[p] : (e.v[p] - 1u) << 23);
  return bits<Floats>(result);
}

template <typename Byte>
MINFER_INLINE Floats widen_bytes(const Byte* from) {
  typedef Byte Narrow __attribute__((vector_size(kWidth / 4)));
  Floats y;
  MINFER_PARTS(y.v[p] = __builtin_convertvector(load_native<Narrow>(from + p * (kWidth / 4)), NativeFloat));
  return y;
}
MINFER_INLINE Floats widen(const uint8_t* from) { return widen_bytes(from); }
MINFER_INLINE Floats widen(const int8_t* from) { return widen_bytes(from); }

// e^x to two units in the last place; 0 below -87.3, e^88 above 88. (Range reduction by ln 2 in two pieces, then the
// polynomial of Cephes' expf.)
MINFER_INLINE Floats exp(const Floats& x) {
  Floats clamped = max(min(x, broadcast(88.0f)), broadcast(-87.3f));
  Ints n = round(clamped * broadcast(1.44269504f));
  Floats whole = to_floats(n);
  Floats r = fma(whole, broadcast(-0.693359375f), clamped);
  r = fma(whole, broadcast(2.12194440e-4f), r);
  Floats y = broadcast(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    y = fma(y, r, broadcast(c));
  }
  y = fma(y, r * r, r + broadcast(1.0f));
  Floats power = bits<Floats>(shift_left(bits<Words>(n) + broadcast(127u), 23));
  Floats result = y * power;
  MINFER_PARTS(result.v[p] = x.v[p] < -87.3f ? NativeFloat{} : x.v[p] == x.v[p] ? result.v[p] : x.v[p]);
  return result;
}

}  // namespace minfer::MINFER_ISA
