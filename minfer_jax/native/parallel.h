// Sharing work among the threads of XLA's own pool.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace minfer {

// A run of items that threads take from: its owner from the front, so that it walks through memory in order, others
// from the back.
class Range {
 public:
  void set(uint32_t begin, uint32_t end) { bounds_.store(pack(begin, end), std::memory_order_relaxed); }

  // Up to ``most`` items, begin .. end; false when none are left.
  bool take(uint32_t most, bool front, int64_t* begin, int64_t* end) {
    uint64_t bounds = bounds_.load(std::memory_order_relaxed), left;
    do {
      uint32_t first = uint32_t(bounds >> 32), last = uint32_t(bounds), n = std::min(most, last - first);
      if (n == 0) return false;
      *begin = front ? first : last - n, *end = *begin + n;
      left = front ? pack(first + n, last) : pack(first, last - n);
    } while (!bounds_.compare_exchange_weak(bounds, left, std::memory_order_relaxed));
    return true;
  }

 private:
  static uint64_t pack(uint32_t begin, uint32_t end) { return uint64_t(begin) << 32 | end; }

  alignas(64) std::atomic<uint64_t> bounds_{0};
};

// Calls work(begin, end) for runs of at most ``grain`` items that make up 0 .. n, on the calling thread and those of
// the pool; returns when all are done. Which thread does what never changes a result: an item writes its own outputs.
template <typename Work>
void parallel_runs(xla::ffi::ThreadPool& pool, int64_t n, int64_t grain, const Work& work) {
  int64_t parts = std::min<int64_t>(pool.num_threads(), (n + grain - 1) / grain);
  if (parts <= 1) {
    if (n > 0) work(0, n);
    return;
  }
  struct Progress {
    std::unique_ptr<Range[]> ranges;
    std::atomic<int64_t> done{0};
  };
  auto progress = std::make_shared<Progress>();  // a thread that comes late finds nothing left to do, but finds that
  progress->ranges.reset(new Range[parts]);
  for (int64_t i = 0; i < parts; i++) progress->ranges[i].set(n * i / parts, n * (i + 1) / parts);
  auto take_part = [progress, parts, grain, &work](int64_t own) {
    for (int64_t i = 0, begin, end; i < parts; i++) {
      while (progress->ranges[(own + i) % parts].take(grain, i == 0, &begin, &end)) {
        work(begin, end);
        progress->done.fetch_add(end - begin, std::memory_order_release);
      }
    }
  };
  for (int64_t i = 1; i < parts; i++) pool.Schedule([take_part, i] { take_part(i); });
  take_part(0);
  while (progress->done.load(std::memory_order_acquire) < n) std::this_thread::yield();
}

// The same item by item: work(i).
template <typename Work>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t n, const Work& work) {
  parallel_runs(pool, n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) work(i);
  });
}

}  // namespace minfer
