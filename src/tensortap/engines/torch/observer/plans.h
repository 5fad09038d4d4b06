// What is watched, resolved once for each node.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <vector>

#include "decoder.h"

namespace tensortap {

struct Tap {
  int32_t lane;
  uint32_t key;
};
constexpr int32_t kPythonLane = -1;

// How much a lane (lanes.h) has gathered in a run.
struct LaneUse {
  size_t rows = SIZE_MAX, bytes = SIZE_MAX;
};

// Runs that are watched alike share one.
struct Plan {
  struct Node {
    uint32_t version = 0;
    uint32_t slots = 0;  // outputs that are resolved, from the first on
    c10::SmallVector<c10::SmallVector<Tap, 1>, 1> taps;  // empty while none of them is watched
  };
  std::vector<Node> nodes;
  std::vector<LaneUse> last_use;  // by lane
  bool watches = false;
  const uint32_t number = next_number++;  // from 1 on; no two plans share one

 private:
  static inline std::atomic<uint32_t> next_number{1};
};

// Numbers of nodes are used again for others, and what was remembered of them is void then.
class NodeVersions {
 public:
  // From 1 on, so that 0 is of no node.
  uint32_t operator[](int32_t node) const { return size_t(node) < versions_.size() ? versions_[size_t(node)] + 1 : 1; }

  void changed(int32_t node) {
    if (size_t(node) >= versions_.size()) versions_.resize(size_t(node) + 64, 0);
    versions_[size_t(node)] += 1;
  }

 private:
  std::vector<uint32_t> versions_;
};

class Taps {
 public:
  Taps(const Decoder& decoder, const NodeVersions& versions) : decoder_(decoder), versions_(versions) {}

  c10::ArrayRef<Tap> of(Plan& plan, int32_t node, size_t slot) {
    Plan::Node& known = at(plan, node);
    if (known.version != versions_[node]) {
      known = Plan::Node{};
      known.version = versions_[node];
    }
    while (known.slots <= slot) resolve(known, node, known.slots++);
    return slot < known.taps.size() ? c10::ArrayRef<Tap>(known.taps[slot]) : c10::ArrayRef<Tap>();
  }

  // It will be asked for when the op has computed.
  static void prefetch(const Plan& plan, int32_t node) {
    if (size_t(node) < plan.nodes.size()) __builtin_prefetch(&plan.nodes[size_t(node)]);
  }

  // What is known of a node, if it is: another that will be watched alike takes it.
  Plan::Node known_of(const Plan& plan, int32_t node) const {
    const bool is_resolved = size_t(node) < plan.nodes.size() && plan.nodes[size_t(node)].version == versions_[node];
    return is_resolved ? plan.nodes[size_t(node)] : Plan::Node{};
  }

  void set(Plan& plan, int32_t node, Plan::Node known) {
    if (known.version == 0) return;
    known.version = versions_[node];
    at(plan, node) = std::move(known);
  }

 private:
  static Plan::Node& at(Plan& plan, int32_t node) {
    if (size_t(node) >= plan.nodes.size()) plan.nodes.resize(size_t(node) + 256);
    return plan.nodes[size_t(node)];
  }

  void resolve(Plan::Node& known, int32_t node, size_t slot) {
    WithPython python;
    Object taps = decoder_.ask("taps", "in", node, Py_ssize_t(slot));
    if (PyTuple_Size(taps.get()) == 0) return;
    known.taps.resize(slot + 1);
    for (Py_ssize_t i = 0; i + 1 < PyTuple_Size(taps.get()); i += 2) {
      known.taps[slot].push_back({int32_t(PyLong_AsLong(PyTuple_GET_ITEM(taps.get(), i))),
                                  uint32_t(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(taps.get(), i + 1)))});
    }
  }

  const Decoder& decoder_;
  const NodeVersions& versions_;
};

}  // namespace tensortap
