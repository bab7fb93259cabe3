// Sharing work among the threads of XLA's own pool.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace minfer {

// Calls work(i) once for every i below n, on the calling thread and those of the pool, in no particular order; returns
// when all are done. Which thread does what never changes a result: a work item writes its own outputs alone.
template <typename Work>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t n, const Work& work) {
  int64_t helpers = std::min<int64_t>(pool.num_threads(), n) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < n; i++) work(i);
    return;
  }
  struct Progress {
    std::atomic<int64_t> next{0}, done{0};
  };
  auto progress = std::make_shared<Progress>();  // a helper that comes late finds nothing left to do, but finds that
  auto take_part = [progress, n, &work] {
    for (int64_t i; (i = progress->next.fetch_add(1, std::memory_order_relaxed)) < n;) {
      work(i);
      progress->done.fetch_add(1, std::memory_order_release);
    }
  };
  for (int64_t i = 0; i < helpers; i++) pool.Schedule(std::function<void()>(take_part));
  take_part();
  while (progress->done.load(std::memory_order_acquire) < n) std::this_thread::yield();
}

}  // namespace minfer
