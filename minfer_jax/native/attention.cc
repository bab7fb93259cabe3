// Attention of one layer, from projected queries, keys and values to what the output projection takes: the custom call
// behind models/native_attention.py. Keys are normed and rotated and, where there is a cache, written into it in place.

#include <algorithm>
#include <optional>
#include <string>

#include "dispatch.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using minfer::Attention;
using Any = ffi::AnyBuffer;

// Heads times queries that attend together: enough that keys are fetched seldom, unless their scores would outgrow the
// memory that a core has for itself.
constexpr int64_t kHeadsAtATime = 48;
constexpr int64_t kScoresAtATime = 1 << 18;

ffi::Error wrong(const std::string& what) { return ffi::Error::InvalidArgument("minfer_attention: " + what); }

bool is(const Any& x, ffi::DataType type, std::initializer_list<int64_t> shape) {
  auto dimensions = x.dimensions();
  return x.element_type() == type && std::equal(dimensions.begin(), dimensions.end(), shape.begin(), shape.end());
}

const float* floats(const Any& x) { return x.element_count() ? x.typed_data<float>() : nullptr; }

ffi::Error attention(ffi::ThreadPool pool, Any q, Any k, Any v, Any cos, Any sin, Any positions, Any until, Any window,
                     Any q_norm, Any k_norm, std::optional<Any> cache_k, std::optional<Any> cache_v,
                     std::optional<Any> index, float eps, float scale, float softcap, ffi::Result<Any> out,
                     ffi::Result<Any> keys, ffi::Result<Any> values) {
  if (q.dimensions().size() != 4 || k.dimensions().size() != 4 || cos.dimensions().size() != 3) {
    return wrong("q and k have 4 dimensions, cos has 3");
  }
  int64_t B = q.dimensions()[0], T = q.dimensions()[1], H = q.dimensions()[2], D = q.dimensions()[3];
  int64_t KV = k.dimensions()[2], half = cos.dimensions()[2];
  if (KV == 0 || H % KV || !is(q, ffi::F32, {B, T, H, D}) || !is(k, ffi::F32, {B, T, KV, D}) ||
      !is(v, ffi::F32, {B, T, KV, D}) || !is(*out, ffi::F32, {B, T, H * D})) {
    return wrong("q is float32 [B, T, H, D], k and v are [B, T, KV, D] with KV a divisor of H, out is [B, T, H * D]");
  }
  if (2 * half > D || !is(cos, ffi::F32, {B, T, half}) || !is(sin, ffi::F32, {B, T, half})) {
    return wrong("cos and sin are float32 [B, T, half], half at most D / 2");
  }
  if (!is(positions, ffi::S32, {B, T}) || !is(window, ffi::S32, {})) {
    return wrong("positions are int32 [B, T], window is an int32 scalar");
  }
  if (!is(until, ffi::S32, {0}) && (index || !is(until, ffi::S32, {B, T}))) {
    return wrong("until is int32 [0], or [B, T] without a cache");
  }
  for (const Any& norm : {q_norm, k_norm}) {
    if (!is(norm, ffi::F32, {D}) && !is(norm, ffi::F32, {0})) return wrong("norms are float32 [D], or [0] for none");
  }

  Attention a{};
  a.rows = B, a.tokens = T, a.kv_heads = KV, a.group = H / KV, a.dim = D, a.half = half;
  a.q = floats(q), a.k = floats(k), a.v = floats(v), a.cos = floats(cos), a.sin = floats(sin);
  a.q_norm = floats(q_norm), a.k_norm = floats(k_norm);
  a.positions = positions.typed_data<int32_t>();
  a.until = until.element_count() ? until.typed_data<int32_t>() : nullptr;
  a.window = *window.typed_data<int32_t>();
  a.eps = eps, a.scale = scale, a.softcap = softcap;
  a.out = out->typed_data<float>();
  auto *store_k = static_cast<char*>(keys->untyped_data()), *store_v = static_cast<char*>(values->untyped_data());
  if (index) {
    if (cache_k->dimensions().size() != 5) return wrong("a cache has 5 dimensions");
    int64_t L = cache_k->dimensions()[0], S = cache_k->dimensions()[3];
    auto type = cache_k->element_type();
    if ((type != ffi::F32 && type != ffi::BF16) || !is(*cache_k, type, {L, B, KV, S, D}) ||
        !is(*cache_v, type, {L, B, KV, S, D}) || !is(*index, ffi::S32, {})) {
      return wrong("a cache is two arrays, float32 or bfloat16 [L, B, KV, S, D], and has an int32 scalar index");
    }
    int64_t layer = *index->typed_data<int32_t>();
    if (layer < 0 || layer >= L) return wrong("layer " + std::to_string(layer) + " of a cache of " + std::to_string(L));
    a.cached = true, a.narrow = type == ffi::BF16, a.slots = S;
    a.slot_stride = D, a.head_stride = S * D, a.row_stride = KV * S * D;
    int64_t before = layer * B * a.row_stride * (a.narrow ? 2 : 4);
    store_k += before, store_v += before;
  } else {
    a.slots = T;
    a.head_stride = D, a.slot_stride = KV * D, a.row_stride = T * KV * D;
  }
  if (keys->untyped_data() != (index ? *cache_k : k).untyped_data() ||
      values->untyped_data() != (index ? *cache_v : v).untyped_data()) {
    return wrong("the second and third result are the cache, or k and v, themselves: alias them");
  }
  a.keys = store_k, a.values = store_v;
  a.queries = std::max<int64_t>(1, std::min(kHeadsAtATime, kScoresAtATime / std::max<int64_t>(1, a.slots)) / a.group);

  const minfer::AttentionKernels& kernels = minfer::kernels().attention;
  int64_t parts = (T + a.queries - 1) / a.queries;
  auto write = [&](int64_t i) {
    thread_local minfer::Scratch scratch;
    kernels.write_keys(a, i / KV, i % KV, scratch);
  };
  auto attend = [&](int64_t i) {
    thread_local minfer::Scratch scratch;
    kernels.attend(a, i / parts / KV, i / parts % KV, i % parts, scratch);
  };
  if (parts == 1) {
    minfer::parallel_for(pool, B * KV, [&](int64_t i) { write(i), attend(i); });
  } else {
    minfer::parallel_for(pool, B * KV, write);
    minfer::parallel_for(pool, B * KV * parts, attend);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(minfer_attention, attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Any>()  // q
                                  .Arg<Any>()  // k
                                  .Arg<Any>()  // v
                                  .Arg<Any>()  // cos
                                  .Arg<Any>()  // sin
                                  .Arg<Any>()  // positions
                                  .Arg<Any>()  // until
                                  .Arg<Any>()  // window
                                  .Arg<Any>()  // q_norm
                                  .Arg<Any>()  // k_norm
                                  .OptionalArg<Any>()  // cache's k
                                  .OptionalArg<Any>()  // cache's v
                                  .OptionalArg<Any>()  // index
                                  .Attr<float>("eps")
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Ret<Any>()   // out
                                  .Ret<Any>()   // keys
                                  .Ret<Any>());  // values
