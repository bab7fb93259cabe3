// The custom call behind quant/native_matmul.py: rows of x times quantised matrices, on the threads of XLA's own pool.

#include <numeric>
#include <string>

#include "dispatch.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using minfer::Matrix;
using minfer::Product;

// What the attribute ``formats`` says, written by quant/native_matmul.py. For every matrix comes a Stack, then the
// Description of each of its formats, then, if layers differ in format, for each layer its format and its index there.
struct Stack {
  int32_t formats, layers, has_bias;
};
struct Description {
  int32_t low, high, block, group, offset, min_sign, has_scales, has_dmin, has_mins, has_codebook;
  int32_t codebook[16];
};
struct Place {
  int32_t format, index;
};

class Reader {
 public:
  explicit Reader(ffi::Span<const int32_t> numbers) : at_(numbers.begin()), left_(numbers.size()) {}

  // The next n structs; null when there are not as many.
  template <typename T>
  const T* next(size_t n = 1) {
    size_t size = n * sizeof(T) / sizeof(int32_t);
    if (size > left_) return nullptr;
    const int32_t* here = at_;
    at_ += size, left_ -= size;
    return reinterpret_cast<const T*>(here);
  }
  bool at_end() const { return left_ == 0; }

 private:
  const int32_t* at_;
  size_t left_;
};

ffi::Error invalid(const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "minfer_matmul: " + what);
}

// The matrices' planes, one after the other from the call's operands; the first problem met stays in ``error``.
class Operands {
 public:
  explicit Operands(ffi::RemainingArgs args) : args_(args) {}

  // Matrix ``index`` of a stacked plane: tiles * columns * 16 numbers.
  const void* plane(int64_t index, int64_t tiles, int64_t columns, std::initializer_list<ffi::DataType> types) {
    auto buffer = args_.get<ffi::AnyBuffer>(next_++);
    if (!buffer) return fail("planes are missing");
    auto dims = buffer->dimensions();
    size_t rank = dims.size();
    int64_t layers = rank == 4 ? dims[0] : 1;
    if (rank < 3 || rank > 4 || dims[rank - 3] != tiles || dims[rank - 2] != columns ||
        dims[rank - 1] != minfer::kTile) {
      return fail("plane " + std::to_string(next_ - 1) + " has not the shape of its format's");
    }
    if (std::find(types.begin(), types.end(), buffer->element_type()) == types.end()) {
      return fail("plane " + std::to_string(next_ - 1) + " has not the dtype of its format's");
    }
    if (index < 0 || index >= layers) return fail("there is no layer " + std::to_string(index));
    type_ = buffer->element_type();
    return static_cast<const char*>(buffer->untyped_data()) + buffer->size_bytes() / layers * index;
  }

  const float* vector(int64_t n) {
    auto buffer = args_.get<ffi::Buffer<ffi::F32>>(next_++);
    if (buffer && int64_t(buffer->element_count()) == n) return buffer->typed_data();
    fail("a bias has not one float32 for each row");
    return nullptr;
  }

  const void* fail(const std::string& why) {
    if (error.empty()) error = why;
    return nullptr;
  }

  // Of the plane that was asked for last.
  ffi::DataType type() const { return type_; }
  bool all_used() const { return next_ == args_.size(); }
  std::string error;

 private:
  ffi::RemainingArgs args_;
  size_t next_ = 0;
  ffi::DataType type_ = ffi::F32;
};

Matrix take_matrix(const Description& about, int64_t n, int64_t k, int64_t index, Operands& operands) {
  Matrix w{};
  w.n = n, w.k = k;
  int64_t tiles = minfer::tiles_of(n);
  auto take = [&](int64_t columns, std::initializer_list<ffi::DataType> types) {
    return operands.plane(index, tiles, columns, types);
  };
  if (about.low == 0) {
    w.values = take(k, {ffi::F32, ffi::F16, ffi::BF16});
    w.type = operands.type() == ffi::F32 ? Matrix::kF32 : operands.type() == ffi::F16 ? Matrix::kF16 : Matrix::kBF16;
    return w;
  }
  w.type = Matrix::kPacked;
  w.low = about.low, w.high = about.high, w.block = about.block, w.group = about.group;
  w.offset = about.offset, w.min_sign = about.min_sign, w.has_codebook = about.has_codebook;
  for (int i = 0; i < 64; i++) w.codebook[i] = uint8_t(about.codebook[i % 16] + 128);
  w.codes = static_cast<const uint32_t*>(take(k * w.low / 32, {ffi::U32}));
  if (w.high) w.codes_high = static_cast<const uint32_t*>(take(k * w.high / 32, {ffi::U32}));
  w.d = take(k / w.block, {ffi::F16, ffi::U8});
  w.d_is_exponent = operands.type() == ffi::U8;
  if (about.has_scales) w.scales = take(k / w.group, {ffi::U8, ffi::S8});
  w.scales_are_signed = operands.type() == ffi::S8;
  if (about.has_dmin) w.dmin = take(k / w.block, {ffi::F16});
  if (about.has_mins) w.mins = static_cast<const uint8_t*>(take(k / w.group, {ffi::U8}));
  return w;
}

// The matrix of a layer out of a stack, whose planes are the next operands.
Matrix take_layer(Reader& reader, int32_t layer, int64_t n, int64_t k, Operands& operands) {
  Matrix chosen{};
  auto stack = reader.next<Stack>();
  auto formats = stack ? reader.next<Description>(stack->formats) : nullptr;
  auto places = formats ? reader.next<Place>(stack->layers) : nullptr;
  if (!places) return operands.fail("its formats end too early"), chosen;
  Place place{0, layer};
  if (stack->layers) {
    if (layer < 0 || layer >= stack->layers) operands.fail("there is no layer " + std::to_string(layer));
    else place = places[layer];
  }
  for (int32_t format = 0; format < stack->formats; format++) {
    bool is_chosen = format == place.format;
    Matrix w = take_matrix(formats[format], n, k, is_chosen ? place.index : 0, operands);
    if (is_chosen) chosen = w;
  }
  if (stack->has_bias) chosen.bias = operands.vector(n);
  return chosen;
}

// So many rows of x at a time that they stay near the processor, and pay for waking the threads; then tiles of the
// outputs are the threads' items, a few at a time.
void run(ffi::ThreadPool& pool, Product& product) {
  constexpr int64_t kMostRows = 256, kGrain = 8;
  const minfer::MatmulKernels& kernels = minfer::kernels().matmul;
  thread_local minfer::Scratch scratch;
  product.panel = scratch.take<char>(std::min(product.m, kMostRows) * kernels.bytes_per_row(product));
  std::vector<int64_t> tiles;
  for (size_t i = 0; i < product.y.size(); i++) tiles.push_back(minfer::tiles_of(product.matrices[i].n));
  int64_t all = std::accumulate(tiles.begin(), tiles.end(), int64_t(0));

  for (product.begin = 0; product.begin < product.m; product.begin = product.end) {
    product.end = std::min(product.m, product.begin + kMostRows);
    int64_t groups = (product.end - product.begin + kernels.rows - 1) / kernels.rows;
    minfer::parallel_for(pool, groups, [&](int64_t group) { kernels.prepare(product, group); });
    minfer::parallel_runs(pool, all, kGrain, [&](int64_t begin, int64_t end) {
      for (size_t output = 0; output < tiles.size(); begin -= tiles[output], end -= tiles[output], output++) {
        int64_t last = std::min(end, tiles[output]);
        if (begin < last) kernels.multiply(product, output, std::max<int64_t>(begin, 0), last);
      }
    });
  }
}

// Leaves the rows at positions of 0 and more, and sets the others' results to zero.
void select_rows(const int32_t* positions, Product& p) {
  thread_local minfer::Scratch scratch;
  int32_t* rows = scratch.take<int32_t>(p.m);
  int64_t wanted = 0;
  for (int64_t i = 0; i < p.m; i++) {
    if (positions[i] >= 0) {
      rows[wanted++] = int32_t(i);
      continue;
    }
    for (size_t output = 0; output < p.y.size(); output++) {
      int64_t n = p.matrices[output].n;
      std::fill(p.y[output] + i * n, p.y[output] + (i + 1) * n, 0.0f);
    }
  }
  if (wanted < p.m) p.rows = rows, p.m = wanted;
}

// Of rows that are padding, which have a negative position, only zeros come out.
ffi::Error matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> positions,
                  ffi::Buffer<ffi::F32> norm, ffi::Buffer<ffi::F32> residual, ffi::BufferR0<ffi::S32> layer,
                  ffi::RemainingArgs planes, ffi::RemainingRets outputs, ffi::Span<const int32_t> formats, float eps,
                  int32_t gate, bool exact) {
  if (x.dimensions().size() != 2) return invalid("x is not [M, K]");
  Product p{};
  p.m = x.dimensions()[0], p.k = x.dimensions()[1];
  p.x = x.typed_data(), p.eps = eps, p.exact = exact, p.gate = Product::Gate(gate);
  if (norm.element_count()) {
    if (int64_t(norm.element_count()) != p.k) return invalid("the norm's weight is not [K]");
    p.norm = norm.typed_data();
  }

  Reader reader(formats);
  Operands operands(planes);
  for (size_t i = 0; !reader.at_end() && operands.error.empty(); i++) {
    auto y = outputs.get<ffi::Buffer<ffi::F32>>(p.gate ? 0 : i);
    if (!y || (*y)->dimensions().size() != 2 || (*y)->dimensions()[0] != p.m) return invalid("an output is not [M, N]");
    p.matrices.push_back(take_layer(reader, *layer.typed_data(), (*y)->dimensions()[1], p.k, operands));
    if (!minfer::kernels().matmul.takes(p.matrices.back())) operands.fail("there is no kernel for such a format");
    p.exact |= p.matrices.back().type != Matrix::kPacked;
    if (i < outputs.size()) p.y.push_back((*y)->typed_data());
  }
  if (!operands.error.empty()) return invalid(operands.error);
  if (!operands.all_used() || p.y.size() != outputs.size() || p.matrices.size() != p.y.size() + (p.gate ? 1 : 0)) {
    return invalid("the operands or results are not those that its formats say");
  }
  if (residual.element_count()) {
    if (int64_t(residual.element_count()) != p.m * p.matrices[0].n) return invalid("the residual is not [M, N]");
    p.residual = residual.typed_data();
  }
  if (positions.element_count()) {
    if (int64_t(positions.element_count()) != p.m) return invalid("the positions are not [M]");
    select_rows(positions.typed_data(), p);
  }
  if (p.m && p.k) run(pool, p);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(minfer_matmul, matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int32_t>>("formats")
                                  .Attr<float>("eps")
                                  .Attr<int32_t>("gate")
                                  .Attr<bool>("exact"));
