// The kernels for every processor, with the vectors that its architecture always has.

#include "dispatch.h"

#define MINFER_ISA portable
#include "kernels.h"

const minfer::Kernels minfer::kPortable = minfer::portable::make_kernels("portable");
