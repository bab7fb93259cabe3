// Sums along a row of floats: lane by lane, then in a tree, so that they do not depend on what stands in other rows.

namespace minfer::MINFER_ISA {

// The sum of part(16 numbers of x) over the row, whose last part is filled up with ``fill``.
template <typename Part>
MINFER_INLINE float sum_along(const float* x, int64_t n, float fill, const Part& part) {
  Floats sum{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = part(load<Floats>(x + i), sum);
  float tail[kLanes];
  for (int lane = 0; lane < kLanes; lane++) tail[lane] = i + lane < n ? x[i + lane] : fill;
  return sum_of_lanes(part(load<Floats>(tail), sum));
}

// An RMSNorm of a row: x / RMS, with eps in it, times the weight [n].
inline void norm_row(const float* x, const float* weight, int64_t n, float eps, float* y) {
  float squares = sum_along(x, n, 0.0f, [](auto part, auto sum) MINFER_ALWAYS { return fma(part, part, sum); });
  float factor = 1 / std::sqrt(squares / float(n) + eps);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

// Takes a row into a running sum: peak is the largest number so far, total the sum of exp(number - peak).
inline void add_exp(const float* x, int64_t n, float* peak, float* total) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  float highest = *peak;
  for (int64_t i = 0; i < n; i++) highest = x[i] > highest ? x[i] : highest;
  float shift = highest == kLeast ? 0 : highest;  // infinity less infinity is not a number
  Floats shifts = broadcast(shift);
  float more = sum_along(x, n, kLeast, [&](auto part, auto sum) MINFER_ALWAYS { return sum + exp(part - shifts); });
  *total = *total * std::exp(*peak - shift) + more;
  *peak = highest;
}

}  // namespace minfer::MINFER_ISA
