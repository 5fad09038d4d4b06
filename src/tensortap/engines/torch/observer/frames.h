// The line of the program that is executing, read from the interpreter's frames of this thread.
//
// The frames of a thread change only when that thread runs, so it may look at them without holding the GIL.
// Their layout is private to each version of Python and is known here for those below; on others the lines of
// nodes are those of their first execution.
#pragma once

#include <Python.h>
#include <c10/util/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <utility>

namespace tensortap {

struct Line {
  const void* code = nullptr;
  const void* instruction = nullptr;
  bool prints = false;  // no part of the program: a tensor is being shown
  uint64_t callers = 0;  // hash of where the line was called from
};

// All lines of the program that are executing; see stack_of in lines.py.
struct Stack {
  uint64_t lines = 0;  // a hash
  bool is_called = false;  // by a line, and not by the backward pass
  bool ran_compiled = false;
};

enum CodeKind : int { kLibrary = 0, kUser = 1, kBackward = 2, kCompiled = 3, kPrinting = 4, kLauncher = 5, kOurs = 6 };  // as in lines.py
constexpr int kCallers = 2, kCallersDepth = 12, kStackLimit = 32;

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#define TENSORTAP_READS_FRAMES 1

struct Frame {
#if PY_VERSION_HEX < 0x030C0000
  void* function;
  PyObject *globals, *builtins, *locals, *code;
  void* object;
  Frame* previous;
  const void* instruction;
#else
  PyObject* code;
  Frame* previous;
  PyObject *function, *globals, *builtins, *locals;
  void* object;
  const void* instruction;
#endif
};

// What a frame object stands for.
inline const Frame* frame_of(PyObject* object) {
  struct FrameObject {
    PyObject_HEAD
    void* back;
    const Frame* frame;
  };
  return reinterpret_cast<const FrameObject*>(object)->frame;
}

inline const Frame* current_frame() {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return nullptr;
#if PY_VERSION_HEX < 0x030D0000
  return state->cframe == nullptr ? nullptr : reinterpret_cast<const Frame*>(state->cframe->current_frame);
#else
  return reinterpret_cast<const Frame*>(state->current_frame);
#endif
}
#else
#define TENSORTAP_READS_FRAMES 0
struct Frame {
  PyObject* code;
  Frame* previous;
  const void* instruction;
};
inline const Frame* frame_of(PyObject*) { return nullptr; }
inline const Frame* current_frame() { return nullptr; }
#endif

// What the codes on the stack are, asked of Python once for each.
class Codes {
 public:
  template <class Classify>
  Line first_user_line(Classify classify) {
    for (const Frame* frame = current_frame(); frame != nullptr; frame = frame->previous) {
      PyObject* code = frame->code;
      const int kind = kind_of(code, classify);
      if (kind == kUser) return {code, frame->instruction, false, callers_of(frame, classify)};
      if (kind == kBackward || kind == kLauncher) return {};
      if (kind == kPrinting) return {nullptr, nullptr, true};
    }
    return {};
  }

  template <class Classify>
  uint64_t callers_of(const Frame* frame, Classify classify) {
    uint64_t hash = 0;
    int left = kCallers;
    frame = frame->previous;
    for (int depth = 0; frame != nullptr && left > 0 && depth < kCallersDepth; ++depth, frame = frame->previous) {
      PyObject* code = frame->code;
      const int kind = kind_of(code, classify);
      if (kind == kUser) {
        hash = (hash ^ reinterpret_cast<uintptr_t>(code)) * 0x9E3779B97F4A7C15ull;
        hash = (hash ^ reinterpret_cast<uintptr_t>(frame->instruction)) * 0x9E3779B97F4A7C15ull;
        left -= 1;
      } else if (kind == kBackward || kind == kLauncher || kind == kOurs) {
        break;
      }
    }
    return hash;
  }

  template <class Classify>
  Stack stack(Classify classify) {
    Stack found;
    bool is_decided = false;
    int left = kStackLimit;
    for (const Frame* frame = current_frame(); frame != nullptr; frame = frame->previous) {
      PyObject* code = frame->code;
      const int kind = kind_of(code, classify);
      if (kind == kUser) {
        if (!is_decided) found.is_called = is_decided = true;
        if (left-- <= 0) continue;
        found.lines = (found.lines ^ reinterpret_cast<uintptr_t>(code)) * 0x9E3779B97F4A7C15ull;
        found.lines = (found.lines ^ reinterpret_cast<uintptr_t>(frame->instruction)) * 0x9E3779B97F4A7C15ull;
      } else if (kind == kCompiled) {
        found.ran_compiled = true;
      } else if (kind == kBackward) {
        is_decided = true;
      } else if (kind == kLauncher) {
        break;
      }
    }
    return found;
  }

  void forget() {
    kinds_.clear();
    recent_.fill({});
  }

 private:
  // Frames without a code are like those of a library. Of a code that is known, not even its type is read.
  template <class Classify>
  int kind_of(PyObject* code, Classify classify) {
    if (code == nullptr) return kLibrary;
    auto& recent = recent_[(reinterpret_cast<uintptr_t>(code) >> 4) % recent_.size()];
    if (recent.first != code) {
      if (!PyCode_Check(code)) return kLibrary;
      auto found = kinds_.find(code);
      recent = {code, found != kinds_.end() ? found->second : (kinds_[code] = classify(code))};
    }
    return recent.second;
  }

  ska::flat_hash_map<PyObject*, int> kinds_;
  std::array<std::pair<PyObject*, int>, 1024> recent_{};
};

}  // namespace tensortap
