// Samples of many tensors at once, for those who look at updates; see updates/samples.py.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <cstring>
#include <unordered_set>
#include <vector>

#include "known.h"
#include "lanes.h"

namespace tensortap {

constexpr int64_t kUnread = -1;   // it does not lie in memory as it is
constexpr int64_t kMissing = -2;  // there is none
constexpr size_t kUsualNodes = 4096;

// Odd: elements at an even distance may all be of one column.
inline int64_t distance_between(int64_t elements, int64_t most) {
  return elements <= most ? 1 : ((elements + most - 1) / most) | 1;
}

template <class Element>
int64_t take(const at::Tensor& tensor, int64_t most, double* to) {
  const auto* from = static_cast<const Element*>(tensor.const_data_ptr());
  const int64_t elements = tensor.numel(), distance = distance_between(elements, most);
  int64_t taken = 0;
  for (int64_t i = 0; i < elements; i += distance) to[taken++] = double(from[i]);
  return taken;
}

// How many elements were taken of a tensor, at even distances, in the order in which they lie in memory.
inline int64_t take_sample(const at::Tensor& tensor, int64_t most, double* to) {
  if (!is_plain(tensor) || !tensor.is_non_overlapping_and_dense()) return kUnread;
  switch (tensor.scalar_type()) {
    case c10::kFloat: return take<float>(tensor, most, to);
    case c10::kDouble: return take<double>(tensor, most, to);
    case c10::kBFloat16: return take<c10::BFloat16>(tensor, most, to);
    case c10::kHalf: return take<c10::Half>(tensor, most, to);
    default: return kUnread;
  }
}

// A number that is the same for the same elements.
inline uint64_t mark_of(const double* elements, int64_t count) {
  uint64_t mark = 0x9e3779b97f4a7c15ull ^ uint64_t(count);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits;
    std::memcpy(&bits, elements + i, sizeof bits);
    mark = (mark ^ bits) * 0xff51afd7ed558ccdull;
    mark ^= mark >> 32;
  }
  return mark;
}

// A parameter in samples: where those of its values before, of its gradient and of its values now begin, and how many they are.
struct SampledParameter {
  int64_t before, befores, gradient, gradients, now, nows;
};

// What an update has meant to it; NaN where that is not known.
struct Measured {
  double size, largest, nonzero, changed, lost;
  uint64_t mark_before, mark;
};

inline Measured measure(const SampledParameter& at, const double* values, bool is_own) {
  const double unknown = std::nan("");
  Measured found{unknown, unknown, unknown, unknown, unknown, 0, 0};
  const double *before = values + at.before, *gradient = values + at.gradient, *now = values + at.now;
  if (at.befores > 0) {
    double squares = 0;
    for (int64_t i = 0; i < at.befores; ++i) squares += before[i] * before[i];
    found.size = std::sqrt(squares / double(at.befores));
    found.mark_before = mark_of(before, at.befores);
  }
  if (at.nows > 0) found.mark = mark_of(now, at.nows);
  if (at.gradients > 0) {
    double largest = 0;
    int64_t nonzero = 0;
    for (int64_t i = 0; i < at.gradients; ++i) {
      const double magnitude = std::fabs(gradient[i]);
      if (!(magnitude <= largest)) largest = magnitude;  // a NaN stays
      nonzero += gradient[i] != 0;
    }
    found.largest = largest;
    found.nonzero = double(nonzero) / double(at.gradients);
  }
  if (is_own && at.nows > 0 && at.nows == at.befores) {
    int64_t changed = 0, lost = 0;
    const bool is_led = at.gradients == at.nows;
    for (int64_t i = 0; i < at.nows; ++i) {
      const bool moved = now[i] != before[i];
      changed += moved;
      if (is_led) lost += !moved && gradient[i] != 0;
    }
    found.changed = double(changed) / double(at.nows);
    if (is_led) found.lost = double(lost) / double(at.nows);
  }
  return found;
}

// The leaves of autograd's graph that a backward pass from some tensors comes to; false if there is too much to walk.
inline bool find_leaves(std::vector<torch::autograd::Node*> pending, size_t most, std::vector<at::Tensor>& leaves) {
  std::unordered_set<torch::autograd::Node*> seen(pending.begin(), pending.end(), kUsualNodes);
  while (!pending.empty()) {
    torch::autograd::Node* node = pending.back();
    pending.pop_back();
    const auto& edges = node->next_edges();
    if (edges.empty()) {  // nothing else can be a leaf, and to ask each node takes longer than the walk
      if (auto* end = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) leaves.push_back(end->variable);
    }
    for (const auto& edge : edges) {
      if (edge.function && seen.insert(edge.function.get()).second) pending.push_back(edge.function.get());
    }
    if (seen.size() > most) return false;
  }
  return true;
}

}  // namespace tensortap
