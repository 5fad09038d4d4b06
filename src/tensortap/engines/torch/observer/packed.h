// Health pills as they wait. Most of the runs of a program are held in memory for a while and let go, so what is written for
// each tensor is little: one cache line of its own for all that is healthy and has no more than two dimensions. As records they
// take three and a half.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lanes.h"
#include "pill.h"

namespace tensortap {

struct PackedPill {
  uint32_t key;
  uint32_t time;  // in microseconds after the first of its block
  uint32_t negative, zero;  // of the elements; all others are positive
  uint8_t rank;
  bool is_whole;  // the pill is beside it as it was made, and the rest of this one says nothing
  uint16_t dtype;
  uint32_t unused;
  double statistics[4];
  uint32_t dims[2];  // those from the third on are beside it

  // Of what is beside it.
  size_t extra() const {
    if (is_whole) return (PILL_SIZE + size_t(rank)) * sizeof(double);
    return rank <= 2 ? 0 : (size_t(rank) - 1) / 2 * sizeof(uint64_t);
  }

  size_t unpacked() const { return (PILL_SIZE + size_t(rank)) * sizeof(double); }
};
static_assert(sizeof(PackedPill) == kPackedBytes);

inline bool fits(double number) { return number >= 0 && number <= double(UINT32_MAX); }

// Whether a pill can be told by so little.
inline bool is_plain(const double* pill, size_t rank) {
  if (!pill_is_healthy(pill) || pill[PILL_INITIALIZED] != 1 || !fits(pill[PILL_ELEMENTS])) return false;
  double elements = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (!fits(pill[PILL_SIZE + i])) return false;
    elements *= pill[PILL_SIZE + i];
  }
  return elements == pill[PILL_ELEMENTS] && pill[PILL_NEGATIVE] + pill[PILL_ZERO] + pill[PILL_POSITIVE] == elements &&
         pill[PILL_DTYPE] >= 0 && pill[PILL_DTYPE] <= double(UINT16_MAX);
}

// Packs a pill but for its key and time; there is room for what is to be beside it, which is no more than a whole pill.
inline PackedPill packed(const double* pill, size_t rank, char* beside) {
  PackedPill made{};
  made.rank = uint8_t(rank);
  made.is_whole = !is_plain(pill, rank);
  if (made.is_whole) {
    std::memcpy(beside, pill, made.extra());
    return made;
  }
  made.negative = uint32_t(pill[PILL_NEGATIVE]);
  made.zero = uint32_t(pill[PILL_ZERO]);
  made.dtype = uint16_t(pill[PILL_DTYPE]);
  std::memcpy(made.statistics, pill + PILL_MIN, sizeof made.statistics);
  for (size_t i = 0; i < std::min<size_t>(rank, 2); ++i) made.dims[i] = uint32_t(pill[PILL_SIZE + i]);
  if (rank > 2) {
    uint32_t rest[kMaxRank]{};
    for (size_t i = 2; i < rank; ++i) rest[i - 2] = uint32_t(pill[PILL_SIZE + i]);
    std::memcpy(beside, rest, made.extra());
  }
  return made;
}

inline void unpack(const PackedPill& from, const char* beside, double* pill) {
  if (from.is_whole) {
    std::memcpy(pill, beside, from.extra());
    return;
  }
  double elements = 1;
  for (size_t i = 0; i < from.rank; ++i) {
    uint32_t size;
    std::memcpy(&size, i < 2 ? reinterpret_cast<const char*>(&from.dims[i]) : beside + (i - 2) * sizeof size, sizeof size);
    pill[PILL_SIZE + i] = size;
    elements *= size;
  }
  pill[PILL_INITIALIZED] = 1;
  pill[PILL_ELEMENTS] = elements;
  pill[PILL_NAN] = pill[PILL_NEG_INF] = pill[PILL_POS_INF] = 0;
  pill[PILL_NEGATIVE] = from.negative;
  pill[PILL_ZERO] = from.zero;
  pill[PILL_POSITIVE] = elements - from.negative - from.zero;
  std::memcpy(pill + PILL_MIN, from.statistics, sizeof from.statistics);
  pill[PILL_DTYPE] = from.dtype;
  pill[PILL_RANK] = from.rank;
}

// A block of them as records, with their values one after the other. Whether they take just the memory that there is for them.
inline bool unpack_all(const PackedPill* packed, size_t count, const char* beside, size_t beside_size, int64_t base, Row* rows,
                       char* values, size_t values_size) {
  size_t offset = 0, extra = 0;
  for (size_t i = 0; i < count; ++i) {
    const PackedPill& each = packed[i];
    const size_t nbytes = each.unpacked();
    if (each.rank > kMaxRank || extra + each.extra() > beside_size || offset + nbytes > values_size) return false;
    unpack(each, beside + extra, reinterpret_cast<double*>(values + offset));
    rows[i] = {each.key, 1, base + int64_t(each.time), int64_t(offset), int64_t(nbytes), {PILL_SIZE + int64_t(each.rank)}};
    offset += nbytes;
    extra += each.extra();
  }
  return offset == values_size && extra == beside_size;
}

}  // namespace tensortap
