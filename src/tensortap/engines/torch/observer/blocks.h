// Memory of records as Python has it: a buffer that goes back to its pool when nobody looks at it any more.
#pragma once

#include <Python.h>

#include "lanes.h"

namespace tensortap {

struct Block {
  PyObject_HEAD
  void* memory;
  size_t size;      // of the block
  Py_ssize_t used;  // bytes that are shown
};

inline void give_back_block(PyObject* self) {
  auto* block = reinterpret_cast<Block*>(self);
  pool().give_back(block->memory, block->size);
  PyObject_Free(self);
}

inline int show_block(PyObject* self, Py_buffer* view, int flags) {
  auto* block = reinterpret_cast<Block*>(self);
  return PyBuffer_FillInfo(view, self, block->memory, block->used, 0, flags);
}

inline Py_ssize_t length_of_block(PyObject* self) { return reinterpret_cast<Block*>(self)->used; }

// The type is made once and never destroyed, as the pool is: it holds no objects, so the garbage collector need not know of it.
inline PyTypeObject* block_type() {
  static PyBufferProcs buffer = {show_block, nullptr};
  static PySequenceMethods sequence = {};
  sequence.sq_length = length_of_block;
  static PyTypeObject* type = [] {
    static PyTypeObject made = {};
    Py_SET_REFCNT(&made, 1);
    made.tp_name = "tensortap.Block";
    made.tp_basicsize = sizeof(Block);
    made.tp_dealloc = give_back_block;
    made.tp_flags = Py_TPFLAGS_DEFAULT;
    made.tp_as_buffer = &buffer;
    made.tp_as_sequence = &sequence;
    made.tp_doc = "Records that the observer has made.";
    return PyType_Ready(&made) == 0 ? &made : nullptr;
  }();
  return type;
}

// A new reference, or null without memory for it; the block is no longer the caller's in either case.
inline PyObject* new_block(void* memory, size_t size, size_t used) {
  PyTypeObject* type = block_type();
  Block* block = type == nullptr ? nullptr : PyObject_New(Block, type);
  if (block == nullptr) {
    pool().give_back(memory, size);
    return nullptr;
  }
  block->memory = memory;
  block->size = size;
  block->used = Py_ssize_t(used);
  return reinterpret_cast<PyObject*>(block);
}

}  // namespace tensortap
