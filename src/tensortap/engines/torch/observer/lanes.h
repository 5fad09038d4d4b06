// Records in the making: rows and data of one debug op, handed to Python in blocks.
#pragma once

#include <c10/util/llvmMathExtras.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "memory.h"
#include "plans.h"

namespace tensortap {

constexpr int kMaxRank = 8;
constexpr size_t kPackedBytes = 64;  // of a pill, see packed.h

// The layout of `tensortap.records.RECORD_ROW`.
struct Row {
  uint32_t key, rank;
  int64_t timestamp, offset, nbytes;
  int64_t dims[kMaxRank];
};
static_assert(sizeof(Row) == 96);

// Blocks of memory that come back when Python has written them. A fresh block costs a page fault for every 4 KiB, several
// times what copying into a used one costs, and a large one that is freed has the heap of the program tidied up.
class Pool {
 public:
  static constexpr size_t kSmallest = size_t(1) << 14, kLargest = size_t(1) << 22;

  // The size of a block for so many bytes: a power of two, unless there are no such blocks.
  static size_t size_for(size_t bytes) { return bytes > kLargest ? bytes : std::max(kSmallest, c10::llvm::PowerOf2Ceil(bytes)); }

  void* take(size_t size) {
    if (size <= kLargest) {
      std::lock_guard<std::mutex> hold(lock_);
      auto& free = of(size);
      if (!free.empty()) {
        void* block = free.back();
        free.pop_back();
        kept_ -= size;
        return block;
      }
    }
    return std::malloc(size);
  }

  void give_back(void* block, size_t size) {
    if (size <= kLargest) {
      std::lock_guard<std::mutex> hold(lock_);
      if (kept_ + size <= kMostKept) {
        of(size).push_back(block);
        kept_ += size;
        return;
      }
    }
    std::free(block);
  }

 private:
  static constexpr size_t kMostKept = size_t(96) << 20;  // bytes that wait to be used again

  std::vector<void*>& of(size_t size) { return free_[c10::llvm::Log2_64(size / kSmallest)]; }

  std::mutex lock_;
  size_t kept_ = 0;
  std::vector<void*> free_[9];  // by the power of two; of 16 KiB to 4 MiB
};

// Never destroyed: Python may give blocks back at its very end.
inline Pool& pool() {
  static auto* blocks = new Pool;
  return *blocks;
}

struct Lane {
  enum Kind : int { kSummary = 0, kCopy = 1 };
  Kind kind;
  double lower, upper;
  bool mute_if_healthy;

  char* rows = nullptr;  // records (Row), or packed pills (packed.h), and what belongs to them
  char* data = nullptr;
  size_t data_size = 0, used = 0, count = 0, row_size = 0;
  size_t value_bytes = 0;  // of what is gathered, unpacked
  int64_t base = 0;  // the time of the first that is gathered, in microseconds since the epoch
  int64_t muted = 0;
  bool has_bad = false;  // one of the summaries gathered so far tells of a NaN or an infinity
  size_t all_used = 0, all_count = 0;  // in the run so far, but for what is gathered now

  size_t row_bytes() const { return kind == kSummary ? kPackedBytes : sizeof(Row); }

  bool has_row() const { return rows != nullptr && (count + 1) * row_bytes() <= row_size; }

  bool has_room(size_t from, size_t more) const {
    return has_row() && (more == 0 || data != nullptr) && from + more <= data_size;
  }

  // Blocks as large as a run like the last one will fill; larger ones while there is no end of it.
  bool make_room(size_t more, const LaneUse& last) {
    if (rows == nullptr) {
      row_size = Pool::size_for(std::min(std::max(last.rows, all_count), kMostRows) * row_bytes());
      rows = static_cast<char*>(pool().take(row_size));
    }
    if (data == nullptr && more != 0) {
      data_size = Pool::size_for(std::max(more, std::min(std::max(last.bytes, all_used), Pool::kLargest)));
      data = static_cast<char*>(pool().take(data_size));
    }
    return rows != nullptr && (data != nullptr || more == 0);
  }

  // Whether a block is worth giving away with what is in it; otherwise a few records would keep a large one.
  bool are_rows_well_filled() const { return rows != nullptr && 4 * count * row_bytes() >= row_size; }
  bool is_data_well_filled() const { return data != nullptr && 2 * used >= data_size; }

  LaneUse use() const { return {all_count + count, all_used + used}; }

  void discard() {
    if (rows != nullptr) pool().give_back(rows, row_size);
    if (data != nullptr) pool().give_back(data, data_size);
    rows = data = nullptr;
    data_size = row_size = 0;
    start_again();
  }

  // After what was gathered has been handed over.
  void start_again() {
    all_used += used;
    all_count += count;
    used = count = value_bytes = 0;
    muted = 0;
    has_bad = false;
  }

 private:
  static constexpr size_t kMostRows = 4096;
};

// Whether the elements lie in host memory as they are, and all of them do.
inline bool is_plain(const at::Tensor& tensor) {
  if (is_usual(tensor)) return tensor.is_cpu() && covers(tensor);
  return !is_wrapper(tensor) && tensor.device().is_cpu() && has_plain_storage(tensor) && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor.is_quantized() && covers(tensor);
}

}  // namespace tensortap
