// Records in the making: rows, executions and values in blocks, which Python takes when they are full.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tensortap {

constexpr int kMaxRank = 8;
constexpr size_t kRows = 4096;                 // of a block
constexpr size_t kBlockSize = size_t(16) << 20;  // bytes of a block for values; one that is larger has its own
constexpr size_t kAlignment = 64;

// The layout of `tensortap.records.RECORD_ROW`; the key is the number of a tensor.
struct Row {
  uint32_t key, rank;
  int64_t timestamp, offset, nbytes;
  int64_t dims[kMaxRank];
};
static_assert(sizeof(Row) == 96);

// The layout of `interface.EXECUTION`.
struct Execution {
  int32_t lane;
  uint32_t flags;
  uint64_t frame;
  int64_t iteration, step;
};
static_assert(sizeof(Execution) == 32);

enum Flag : uint32_t {
  kKeptInput = 1,
  kKeptOutput = 2,
  kApart = 4,  // strings, or too many dimensions for a row: the sizes of all of them lie in front of the value
};

struct Block {
  Row* rows;
  Execution* executions;
  char* data;
  size_t size, used = 0;
  uint32_t count = 0;
  uint32_t writers = 0;  // threads that are copying into it
  bool is_closed = false, has_bad = false, has_apart = false;
  int64_t value_bytes = 0;
};

// Memory of blocks that comes back when Python has written them. A fresh block costs a page fault for every 4 KiB,
// several times what copying into a used one costs. (Large pages were slower: the kernel stops to make room for them.)
// Large values have blocks of their own size, which the next layer, or the next run, asks for again.
class Pool {
 public:
  char* take(size_t size) {
    size = rounded(size);
    {
      std::lock_guard<std::mutex> hold(lock_);
      const auto found = free_.find(size);
      if (found != free_.end() && !found->second.empty()) {
        char* memory = found->second.back();
        found->second.pop_back();
        kept_ -= size;
        return memory;
      }
    }
    return static_cast<char*>(std::aligned_alloc(kAlignment, size));
  }

  void give_back(char* memory, size_t size) {
    size = rounded(size);
    {
      std::lock_guard<std::mutex> hold(lock_);
      if (kept_ + size <= kMostKept) {
        free_[size].push_back(memory);
        kept_ += size;
        return;
      }
    }
    std::free(memory);
  }

 private:
  static constexpr size_t kMostKept = size_t(384) << 20;
  static constexpr size_t kUnit = size_t(64) << 10;  // a multiple of the alignment
  static size_t rounded(size_t size) { return (size + kUnit - 1) / kUnit * kUnit; }

  std::mutex lock_;
  std::unordered_map<size_t, std::vector<char*>> free_;  // by size; the last one is taken first, it may be in a cache
  size_t kept_ = 0;
};

// Never destroyed: Python may give blocks back at its very end.
inline Pool& pool() {
  static auto* memory = new Pool;
  return *memory;
}

inline void delete_block(Block* block) {
  pool().give_back(block->data, block->size);
  std::free(block->rows);
  std::free(block->executions);
  delete block;
}

// Null if there is no memory: a record less, never an error of the program's.
inline Block* new_block(size_t value_size) {
  const size_t size = value_size > kBlockSize ? value_size : kBlockSize;
  auto* rows = static_cast<Row*>(std::malloc(kRows * sizeof(Row)));
  auto* executions = static_cast<Execution*>(std::malloc(kRows * sizeof(Execution)));
  char* data = pool().take(size);
  if (rows != nullptr && executions != nullptr && data != nullptr) return new Block{rows, executions, data, size};
  std::free(rows);
  std::free(executions);
  if (data != nullptr) pool().give_back(data, size);
  return nullptr;
}

}  // namespace tensortap
