// Whether all elements of a tensor are finite, told by the bits of their exponents: the fastest look at a value there is.
#pragma once

#include "lanes.h"

namespace tensortap {

template <class Bits>
__attribute__((always_inline)) inline bool finds_exponent(const void* data, size_t count, Bits exponent) {
  constexpr size_t kPart = 4096;  // looked at without a branch
  const auto* bits = static_cast<const Bits*>(data);
  for (size_t begin = 0; begin < count; begin += kPart) {
    const size_t end = count - begin < kPart ? count : begin + kPart;
    Bits found = 0;
    for (size_t i = begin; i < end; ++i) found |= Bits((bits[i] & exponent) == exponent);
    if (found != 0) return true;
  }
  return false;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
template <class Bits>
__attribute__((optimize("O3"), target("avx2"))) bool finds_exponent_widely(const void* data, size_t count, Bits exponent) {
  return finds_exponent(data, count, exponent);
}
#endif

template <class Bits>
__attribute__((optimize("O3"))) bool has_exponent(const void* data, size_t count, Bits exponent) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  static const bool is_wide = __builtin_cpu_supports("avx2") != 0;
  if (is_wide) return finds_exponent_widely(data, count, exponent);
#endif
  return finds_exponent(data, count, exponent);
}

// 1 for yes, 0 for no, -1 for a tensor that cannot be read as it lies in memory.
inline int is_finite(const at::Tensor& tensor) {
  if (!c10::isFloatingType(tensor.scalar_type()) && !c10::isComplexType(tensor.scalar_type())) return 1;
  if (!is_plain(tensor) || !tensor.is_non_overlapping_and_dense()) return -1;
  const void* data = tensor.const_data_ptr();
  const size_t count = size_t(tensor.numel());
  switch (tensor.scalar_type()) {
    case c10::kFloat: return !has_exponent<uint32_t>(data, count, 0x7f800000u);
    case c10::kComplexFloat: return !has_exponent<uint32_t>(data, 2 * count, 0x7f800000u);
    case c10::kDouble: return !has_exponent<uint64_t>(data, count, 0x7ff0000000000000ull);
    case c10::kComplexDouble: return !has_exponent<uint64_t>(data, 2 * count, 0x7ff0000000000000ull);
    case c10::kBFloat16: return !has_exponent<uint16_t>(data, count, 0x7f80);
    case c10::kHalf: return !has_exponent<uint16_t>(data, count, 0x7c00);
    default: return -1;
  }
}

// Whether a tensor is not known to have a NaN or an infinity; one that cannot be read goes to `unread` with its number.
inline bool note_finite(const at::Tensor& tensor, int number, PyObject* unread) {
  const int finite = is_finite(tensor);
  if (finite < 0) {
    PyObject* boxed = PyLong_FromLong(number);
    PyList_Append(unread, boxed);
    Py_XDECREF(boxed);
  }
  return finite != 0;
}

}  // namespace tensortap
