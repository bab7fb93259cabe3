// The custom call behind quant/native_matmul.py: rows of x times quantised matrices, on the threads of XLA's own pool.

#include <string>

#include "dispatch.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using minfer::Matrix;
using minfer::Product;

// What the attribute says of one matrix, in this order: see quant/native_matmul.py.
struct Description {
  int32_t low, high, block, group, offset, min_sign, has_scales, has_dmin, has_mins, has_bias, has_codebook;
  int32_t codebook[16];
};
constexpr size_t kDescription = sizeof(Description) / sizeof(int32_t);

ffi::Error invalid(const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "minfer_matmul: " + what);
}

// The matrices' planes, one after the other from the call's operands; the first problem met stays in ``error``.
class Operands {
 public:
  Operands(ffi::RemainingArgs args, int32_t layer) : args_(args), layer_(layer) {}

  // The plane's part of the layer; tiles * columns * 16 numbers.
  const void* plane(int64_t tiles, int64_t columns, std::initializer_list<ffi::DataType> types) {
    auto buffer = args_.get<ffi::AnyBuffer>(next_++);
    if (!buffer) return fail("planes are missing");
    auto dims = buffer->dimensions();
    size_t rank = dims.size();
    int64_t layers = rank == 4 ? dims[0] : 1;
    if (rank < 3 || rank > 4 || dims[rank - 3] != tiles || dims[rank - 2] != columns || dims[rank - 1] != minfer::kTile) {
      return fail("plane " + std::to_string(next_ - 1) + " has not the shape of its format's");
    }
    if (std::find(types.begin(), types.end(), buffer->element_type()) == types.end()) {
      return fail("plane " + std::to_string(next_ - 1) + " has not the dtype of its format's");
    }
    if (layer_ < 0 || layer_ >= layers) return fail("there is no layer " + std::to_string(layer_));
    type_ = buffer->element_type();
    return static_cast<const char*>(buffer->untyped_data()) + buffer->size_bytes() / layers * layer_;
  }

  const float* vector(int64_t n) {
    auto buffer = args_.get<ffi::Buffer<ffi::F32>>(next_++);
    if (buffer && int64_t(buffer->element_count()) == n) return buffer->typed_data();
    fail("a bias has not one float32 for each row");
    return nullptr;
  }

  // Of the plane that was asked for last.
  ffi::DataType type() const { return type_; }
  bool all_used() const { return next_ == args_.size(); }
  std::string error;

 private:
  const void* fail(const std::string& why) {
    if (error.empty()) error = why;
    return nullptr;
  }

  ffi::RemainingArgs args_;
  int32_t layer_;
  size_t next_ = 0;
  ffi::DataType type_ = ffi::F32;
};

Matrix describe(const Description& about, int64_t n, int64_t k, Operands& operands) {
  Matrix w{};
  w.n = n, w.k = k;
  int64_t tiles = (n + minfer::kTile - 1) / minfer::kTile;
  if (about.low == 0) {
    w.values = operands.plane(tiles, k, {ffi::F32, ffi::F16, ffi::BF16});
    w.type = operands.type() == ffi::F32 ? Matrix::kF32 : operands.type() == ffi::F16 ? Matrix::kF16 : Matrix::kBF16;
  } else {
    w.type = Matrix::kPacked;
    w.low = about.low, w.high = about.high, w.block = about.block, w.group = about.group;
    w.offset = about.offset, w.min_sign = about.min_sign, w.has_codebook = about.has_codebook;
    std::copy(about.codebook, about.codebook + 16, w.codebook);
    w.codes = static_cast<const uint32_t*>(operands.plane(tiles, k * w.low / 32, {ffi::U32}));
    if (w.high) w.codes_high = static_cast<const uint32_t*>(operands.plane(tiles, k * w.high / 32, {ffi::U32}));
    w.d = operands.plane(tiles, k / w.block, {ffi::F16, ffi::U8});
    w.d_is_exponent = operands.type() == ffi::U8;
    if (about.has_scales) w.scales = operands.plane(tiles, k / w.group, {ffi::U8, ffi::S8});
    w.scales_are_signed = operands.type() == ffi::S8;
    if (about.has_dmin) w.dmin = operands.plane(tiles, k / w.block, {ffi::F16});
    if (about.has_mins) w.mins = static_cast<const uint8_t*>(operands.plane(tiles, k / w.group, {ffi::U8}));
  }
  if (about.has_bias) w.bias = operands.vector(n);
  return w;
}

void run(ffi::ThreadPool& pool, Product& product) {
  const minfer::Kernels& kernels = minfer::kernels();
  thread_local minfer::Scratch scratch;
  product.panel = scratch.take<char>(kernels.panel_bytes(product));
  int64_t groups = (product.m + kernels.rows - 1) / kernels.rows;
  minfer::parallel_for(pool, groups, [&](int64_t group) { kernels.prepare(product, group); });

  // Items of equal work: a number of tiles of one output for a number of rows of x that stay in a core's cache.
  constexpr int64_t kMostRows = 256;
  int64_t chunks = (product.m + kMostRows - 1) / kMostRows;
  int64_t threads = std::max<int64_t>(1, pool.num_threads());
  struct Item {
    size_t output;
    int64_t begin, end;
  };
  std::vector<Item> items;
  for (size_t output = 0; output < product.y.size(); output++) {
    int64_t tiles = (product.matrices[output].n + minfer::kTile - 1) / minfer::kTile;
    int64_t share = std::max<int64_t>(1, tiles / (8 * threads));
    for (int64_t tile = 0; tile < tiles; tile += share) items.push_back({output, tile, std::min(tiles, tile + share)});
  }
  int64_t n = int64_t(items.size());
  minfer::parallel_for(pool, chunks * n, [&](int64_t i) {
    const Item& item = items[i % n];
    int64_t from = i / n * kMostRows;
    kernels.multiply(product, item.output, item.begin, item.end, from, std::min(product.m, from + kMostRows));
  });
}

ffi::Error matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> norm,
                  ffi::Buffer<ffi::F32> residual, ffi::BufferR0<ffi::S32> layer, ffi::RemainingArgs planes,
                  ffi::RemainingRets outputs, ffi::Span<const int32_t> formats, float eps, int32_t gate, bool exact) {
  if (x.dimensions().size() != 2) return invalid("x is not [M, K]");
  Product p{};
  p.m = x.dimensions()[0], p.k = x.dimensions()[1];
  p.x = x.typed_data(), p.eps = eps, p.exact = exact, p.gate = Product::Gate(gate);
  if (norm.element_count()) {
    if (int64_t(norm.element_count()) != p.k) return invalid("the norm's weight is not [K]");
    p.norm = norm.typed_data();
  }

  size_t count = formats.size() / kDescription;
  if (formats.size() % kDescription || outputs.size() != (p.gate ? 1 : count) || count != (p.gate ? 2 : count)) {
    return invalid("the outputs are not those of the matrices");
  }
  Operands operands(planes, *layer.typed_data());
  for (size_t i = 0; i < count; i++) {
    auto y = outputs.get<ffi::Buffer<ffi::F32>>(p.gate ? 0 : i);
    if (!y || (*y)->dimensions().size() != 2 || (*y)->dimensions()[0] != p.m) return invalid("an output is not [M, N]");
    auto about = reinterpret_cast<const Description*>(formats.begin() + i * kDescription);
    p.matrices.push_back(describe(*about, (*y)->dimensions()[1], p.k, operands));
    p.exact |= p.matrices.back().type != Matrix::kPacked;
    if (i < outputs.size()) p.y.push_back((*y)->typed_data());
  }
  if (!operands.error.empty()) return invalid(operands.error);
  if (!operands.all_used()) return invalid("there are more operands than the formats say");
  if (residual.element_count()) {
    if (int64_t(residual.element_count()) != p.m * p.matrices[0].n) return invalid("the residual is not [M, N]");
    p.residual = residual.typed_data();
  }
  if (p.m && p.k) run(pool, p);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(minfer_matmul, matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int32_t>>("formats")
                                  .Attr<float>("eps")
                                  .Attr<int32_t>("gate")
                                  .Attr<bool>("exact"));
