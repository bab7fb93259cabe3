// The version of XLA's FFI interface that the library is built for, which native/__init__.py compares with jaxlib's.

#include "xla/ffi/api/c_api.h"

extern "C" {

int minfer_ffi_api_version[] = {XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};

}
