// Memory for what a kernel works on.

#pragma once

#include <cstddef>
#include <cstdlib>

namespace minfer {

// Memory that a thread keeps for itself, aligned to 64 bytes; what it held is gone when it grows.
class Scratch {
 public:
  template <typename T>
  T* take(size_t n) {
    if (n * sizeof(T) > size_) {
      std::free(data_);
      size_ = (n * sizeof(T) + 63) / 64 * 64;
      data_ = std::aligned_alloc(64, size_);
    }
    return static_cast<T*>(data_);
  }
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace minfer
