// Copies a program's result into host memory that stays where it is: the custom calls behind runtime/readback.py.
//
// A program names its destination by a slot, not by an address: a buffer that grows moves, and a program must not be
// compiled again for that. For the same reason the handlers are not marked compatible with command buffers: a captured
// copy would keep the old address. The CUDA driver is looked up at run time, so that building needs no CUDA toolkit.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>
#include <unordered_map>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// The part of the CUDA driver's interface (libcuda) that is used here, where 0 is success and handles are pointers, and
// the primary context of the first device, which XLA uses too. It is never given up: page-locked memory ends with it.
struct Driver {
  int (*init)(unsigned);
  int (*device)(int*, int);
  int (*retain)(void**, int);
  int (*push)(void*);
  int (*pop)(void**);
  int (*allocate)(void**, std::size_t, unsigned);
  int (*free)(void*);
  int (*copy)(void*, unsigned long long, std::size_t, void*);
  void* context = nullptr;
  bool ready = false;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return;
    auto look_up = [&](auto& function, const char* name) {
      void* symbol = dlsym(library, name);
      std::memcpy(&function, &symbol, sizeof symbol);
      return symbol != nullptr;
    };
    int first;
    ready = look_up(init, "cuInit") && look_up(device, "cuDeviceGet") && look_up(retain, "cuDevicePrimaryCtxRetain") &&
            look_up(push, "cuCtxPushCurrent_v2") && look_up(pop, "cuCtxPopCurrent_v2") &&
            look_up(allocate, "cuMemHostAlloc") && look_up(free, "cuMemFreeHost") &&
            look_up(copy, "cuMemcpyDtoHAsync_v2") && init(0) == 0 && device(&first, 0) == 0 &&
            retain(&context, first) == 0;
  }
};

const Driver& driver() {
  static const Driver instance;
  return instance;
}

// Runs action(driver) in that context, whatever context the calling thread has; false when it fails.
template <typename Action>
bool in_context(Action action) {
  const Driver& cuda = driver();
  if (!cuda.ready || cuda.push(cuda.context)) return false;
  bool done = action(cuda) == 0;
  void* popped;
  cuda.pop(&popped);
  return done;
}

void* allocate(std::size_t bytes, bool page_locked) {
  if (!page_locked) return std::malloc(bytes);
  constexpr unsigned kPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: page-locked in every context
  void* data = nullptr;
  bool done = in_context([&](const Driver& cuda) { return cuda.allocate(&data, bytes, kPortable); });
  return done ? data : nullptr;
}

struct Buffer {
  void* data;
  std::size_t bytes;
};

// The buffer of each slot. Never destroyed, since programs may still run when the process ends.
struct Table {
  std::mutex mutex;
  std::unordered_map<int64_t, Buffer> buffers;
};

Table& table() {
  static auto* instance = new Table;
  return *instance;
}

// Calls copy(destination) with the mutex held, so that the buffer stays meanwhile.
template <typename Copy>
ffi::Error copy_to(int64_t slot, std::size_t bytes, Copy copy) {
  std::lock_guard<std::mutex> lock(table().mutex);
  auto entry = table().buffers.find(slot);
  Buffer buffer = entry == table().buffers.end() ? Buffer{} : entry->second;
  if (buffer.bytes < bytes) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      "readback slot " + std::to_string(slot) + " holds " + std::to_string(buffer.bytes) +
                          " bytes and the result has " + std::to_string(bytes) + ": claim them before the call");
  }
  return copy(buffer.data);
}

// The scalar result says nothing. A program that returns it keeps the call, and needs no costly side effect for that.
using Done = ffi::Result<ffi::BufferR0<ffi::S32>>;

ffi::Error readback_cpu(ffi::Buffer<ffi::F32> x, int64_t slot, Done done) {
  *done->typed_data() = 0;
  return copy_to(slot, x.size_bytes(), [&](void* destination) {
    std::memcpy(destination, x.untyped_data(), x.size_bytes());
    return ffi::Error::Success();
  });
}

ffi::Error readback_cuda(void* stream, ffi::Buffer<ffi::F32> x, int64_t slot, Done) {
  const Driver& cuda = driver();
  if (!cuda.ready) return ffi::Error(ffi::ErrorCode::kUnavailable, "readback: no CUDA driver that works here");
  return copy_to(slot, x.size_bytes(), [&](void* destination) {
    auto source = reinterpret_cast<unsigned long long>(x.untyped_data());
    int status = cuda.copy(destination, source, x.size_bytes(), stream);
    return status ? ffi::Error::Internal("readback: cuMemcpyDtoHAsync returned " + std::to_string(status))
                  : ffi::Error::Success();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    minfer_readback_cpu, readback_cpu,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Attr<int64_t>("slot").Ret<ffi::BufferR0<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(minfer_readback_cuda, readback_cuda,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("slot")
                                  .Ret<ffi::BufferR0<ffi::S32>>());

extern "C" {

// Allocates a buffer, page-locked or ordinary memory, and makes it the slot's. Null, and no change, when it cannot.
void* minfer_readback_reserve(int64_t slot, std::size_t bytes, bool page_locked) {
  void* data = allocate(bytes, page_locked);
  if (data) {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().buffers[slot] = {data, bytes};
  }
  return data;
}

// Frees a buffer; a slot that has it is left without.
void minfer_readback_release(void* data, bool page_locked) {
  {
    std::lock_guard<std::mutex> lock(table().mutex);
    for (auto entry = table().buffers.begin(); entry != table().buffers.end();) {
      entry = entry->second.data == data ? table().buffers.erase(entry) : std::next(entry);
    }
  }
  if (page_locked) {
    in_context([&](const Driver& cuda) { return cuda.free(data); });
  } else {
    std::free(data);
  }
}

}  // extern "C"
