// Along a row of floats: lane by lane, then in a tree, so that nothing depends on what stands in other rows.

namespace minfer::MINFER_ISA {

// ``start`` with the row taken in, 16 numbers at a time, by part(numbers, so far); the last part is filled up with
// ``fill``.
template <typename Part>
MINFER_INLINE Floats along(const float* x, int64_t n, float fill, Floats start, const Part& part) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) start = part(load<Floats>(x + i), start);
  if (i == n) return start;
  float tail[kLanes];
  for (int lane = 0; lane < kLanes; lane++) tail[lane] = i + lane < n ? x[i + lane] : fill;
  return part(load<Floats>(tail), start);
}

template <typename Part>
MINFER_INLINE float sum_along(const float* x, int64_t n, float fill, const Part& part) {
  return sum_of_lanes(along(x, n, fill, Floats{}, part));
}

// An RMSNorm of a row: x / RMS, with eps in it, times the weight [n].
inline void norm_row(const float* x, const float* weight, int64_t n, float eps, float* y) {
  float squares = sum_along(x, n, 0.0f, [](auto part, auto sum) MINFER_ALWAYS { return fma(part, part, sum); });
  float factor = 1 / std::sqrt(squares / float(n) + eps);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

// Takes logits of tokens ``id`` and following into running ones: peak is the largest so far, best the first token that
// has it, total the sum of exp(logit - peak). NaN is no peak, but makes the total NaN.
inline void add_logits(const float* z, int64_t n, int32_t id, float* peak, float* total, int32_t* best) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  constexpr int64_t kStretch = 512;  // searched for the peak's place, if it is in there
  float highest = *peak;
  int64_t place = -1;
  for (int64_t i = 0; i < n; i += kStretch) {
    auto larger = [](auto part, auto most) MINFER_ALWAYS { return max(part, most); };
    float most = max_of_lanes(along(z + i, std::min(kStretch, n - i), kLeast, broadcast(kLeast), larger));
    if (most > highest) highest = most, place = i;
  }
  if (place >= 0) {
    while (z[place] != highest) place++;
    *best = int32_t(id + place);
  }
  float shift = highest == kLeast ? 0 : highest;  // infinity less infinity is not a number
  Floats shifts = broadcast(shift);
  float more = sum_along(z, n, kLeast, [&](auto part, auto sum) MINFER_ALWAYS { return sum + exp(part - shifts); });
  *total = *total * std::exp(*peak - shift) + more;
  *peak = highest;
}

}  // namespace minfer::MINFER_ISA
