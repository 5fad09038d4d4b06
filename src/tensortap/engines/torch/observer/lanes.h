// Records in the making: rows and data of one debug op, handed to Python in blocks.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "memory.h"

namespace tensortap {

constexpr int kMaxRank = 8;

// The layout of `tensortap.records.RECORD_ROW`.
struct Row {
  uint32_t key, rank;
  int64_t timestamp, offset, nbytes;
  int64_t dims[kMaxRank];
};
static_assert(sizeof(Row) == 96);

// Blocks of memory that come back when Python has written them. A fresh block costs a page fault for every
// 4 KiB, several times what copying into a used one costs.
template <size_t kSize>
class Pool {
 public:
  void* take(size_t size) {
    if (size == kSize) {
      std::lock_guard<std::mutex> hold(lock_);
      if (!free_.empty()) {
        void* block = free_.back();
        free_.pop_back();
        return block;
      }
    }
    return std::malloc(size);
  }

  void give_back(void* block, size_t size) {
    if (size == kSize) {
      std::lock_guard<std::mutex> hold(lock_);
      if (free_.size() < kKept) {
        free_.push_back(block);
        return;
      }
    }
    std::free(block);
  }

 private:
  static constexpr size_t kKept = 24;
  std::mutex lock_;
  std::vector<void*> free_;
};

constexpr size_t kBlock = size_t(4) << 20;
constexpr size_t kRowBlock = 4096 * sizeof(Row);

// Never destroyed: Python may give blocks back at its very end.
inline Pool<kBlock>& pool() {
  static auto* blocks = new Pool<kBlock>;
  return *blocks;
}

inline Pool<kRowBlock>& row_pool() {
  static auto* blocks = new Pool<kRowBlock>;
  return *blocks;
}

struct Lane {
  enum Kind : int { kSummary = 0, kCopy = 1 };
  Kind kind;
  double lower, upper;
  bool mute_if_healthy;

  Row* rows = nullptr;
  char* data = nullptr;
  size_t data_size = 0, used = 0, count = 0, row_size = 0;
  int64_t muted = 0;
  bool has_bad = false;  // one of the summaries gathered so far tells of a NaN or an infinity

  bool has_room(size_t from, size_t more) const {
    return rows != nullptr && data != nullptr && (count + 1) * sizeof(Row) <= row_size && from + more <= data_size;
  }

  bool make_room(size_t more) {
    if (rows == nullptr) {
      row_size = kRowBlock;
      rows = static_cast<Row*>(row_pool().take(row_size));
    }
    if (data == nullptr) {
      data_size = more > kBlock ? more : kBlock;
      data = static_cast<char*>(pool().take(data_size));
    }
    return rows != nullptr && data != nullptr;
  }

  void discard() {
    if (rows != nullptr) row_pool().give_back(rows, row_size);
    if (data != nullptr) pool().give_back(data, data_size);
    forget();
  }

  // After the memory has been given to somebody else.
  void forget() {
    rows = nullptr;
    data = nullptr;
    start_again();
  }

  // After what was gathered has been copied.
  void start_again() {
    used = count = 0;
    muted = 0;
    has_bad = false;
  }
};

// Whether the elements lie in host memory as they are, and all of them do.
inline bool is_plain(const at::Tensor& tensor) {
  return !is_wrapper(tensor) && tensor.device().is_cpu() && has_plain_storage(tensor) && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor.is_quantized() && covers(tensor);
}

}  // namespace tensortap
