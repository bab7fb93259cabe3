// Which kernels this processor runs.

#include "dispatch.h"

namespace minfer {
namespace {

struct Choice {
  const Kernels* kernels;
  bool runs_here;
};

std::vector<Choice> choices() {  // best first
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  return {
      {&kAvx512, avx512},
#if defined(MINFER_HAS_AVXVNNI)
      {&kAvxVnni, avx2 && __builtin_cpu_supports("avxvnni")},
#endif
      {&kAvx2, avx2},
      {&kPortable, true},
  };
#else
  return {{&kPortable, true}};
#endif
}

const Kernels* chosen() {
  for (const Choice& choice : choices()) {
    if (choice.runs_here) return choice.kernels;
  }
  return nullptr;  // never: the portable ones run everywhere
}

const Kernels*& current() {
  static const Kernels* instance = chosen();
  return instance;
}

}  // namespace

const Kernels& kernels() { return *current(); }

}  // namespace minfer

extern "C" {

// The name of the kernels in use.
const char* minfer_kernels() { return minfer::kernels().name; }

// Uses the kernels of that name from now on; false, and no change, when there are none that run here.
bool minfer_use_kernels(const char* name) {
  for (const minfer::Choice& choice : minfer::choices()) {
    if (choice.runs_here && std::strcmp(choice.kernels->name, name) == 0) {
      minfer::current() = choice.kernels;
      return true;
    }
  }
  return false;
}

}  // extern "C"
