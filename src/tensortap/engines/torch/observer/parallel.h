// Summaries of large tensors, made by the threads that PyTorch computes with: otherwise they would wait for one of them.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "pill.h"

// The OpenMP runtime that PyTorch has brought along, if it has one. It is not linked: a second runtime in the process
// would have threads of its own.
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned flags);
__attribute__((weak)) int omp_get_thread_num();
__attribute__((weak)) int omp_get_num_threads();
}

namespace tensortap {

using SummaryKernel = void (*)(const void* data, int dtype, int rank, const int64_t* sizes, const int64_t* strides,
                               double lower, double upper, double* row);

constexpr int64_t kLarge = 1 << 17;  // elements from which waking the threads is worth it
constexpr int kMaxParts = 64;

// Adds the summary of another part of the same tensor. Without bounds, all but the elements that are NaN or infinite
// have a say in mean and variance.
inline void merge_summary(double* row, const double* more) {
  const double mine = row[PILL_NEGATIVE] + row[PILL_ZERO] + row[PILL_POSITIVE];
  const double theirs = more[PILL_NEGATIVE] + more[PILL_ZERO] + more[PILL_POSITIVE];
  double &mean = row[PILL_MEAN], &variance = row[PILL_VARIANCE];
  if (mine == 0) {
    mean = more[PILL_MEAN];
    variance = more[PILL_VARIANCE];
  } else if (theirs != 0) {
    const double all = mine + theirs, step = more[PILL_MEAN] - mean;
    variance = (variance * mine + more[PILL_VARIANCE] * theirs) / all + step * step * (mine / all) * (theirs / all);
    mean += step * (theirs / all);
  }
  for (int i = PILL_ELEMENTS; i <= PILL_POS_INF; ++i) row[i] += more[i];
  row[PILL_MIN] = std::min(row[PILL_MIN], more[PILL_MIN]);
  row[PILL_MAX] = std::max(row[PILL_MAX], more[PILL_MAX]);
}

// False if this tensor is better summarised by one thread.
inline bool summarise_in_parallel(SummaryKernel summarise, const void* data, int dtype, int64_t count, size_t item_size,
                                  double lower, double upper, double* row) {
  if (count < kLarge || std::isfinite(lower) || std::isfinite(upper)) return false;
  if (GOMP_parallel == nullptr || omp_get_thread_num == nullptr || omp_get_num_threads == nullptr) return false;
  const int threads = std::min({at::get_num_threads(), kMaxParts, int(count / (kLarge / 2))});
  if (threads < 2 || at::in_parallel_region()) return false;

  struct Job {
    SummaryKernel summarise;
    const char* data;
    int dtype;
    int64_t count;
    size_t item_size;
    double lower, upper;
    int parts = 0;
    double rows[kMaxParts][PILL_SIZE + 2];  // a part has one dimension; the rest keeps rows aligned
  } job{summarise, static_cast<const char*>(data), dtype, count, item_size, lower, upper, 0, {}};
  const auto work = [](void* argument) {
    auto& all = *static_cast<Job*>(argument);
    const int number = omp_get_thread_num(), parts = omp_get_num_threads();  // there may be fewer than asked for
    if (number == 0) all.parts = parts;
    const int64_t first = all.count * number / parts, last = all.count * (number + 1) / parts, stride = 1;
    const int64_t size = last - first;
    const char* part = all.data + size_t(first) * all.item_size;
    all.summarise(part, all.dtype, 1, &size, &stride, all.lower, all.upper, all.rows[number]);
  };
  GOMP_parallel(work, &job, unsigned(threads), 0);
  std::copy_n(job.rows[0], PILL_RANK, row);
  for (int part = 1; part < job.parts; ++part) merge_summary(row, job.rows[part]);
  return true;
}

}  // namespace tensortap
