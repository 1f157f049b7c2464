// References to objects of Python, for libraries that are compiled for the installed torch.

#pragma once

#include <Python.h>

#include <utility>

namespace {

// A new reference that is dropped at the end of a block.
struct Owned {
  PyObject* object = nullptr;
  Owned() = default;
  explicit Owned(PyObject* object) : object(object) {}
  Owned(Owned&& other) noexcept : object(other.release()) {}
  Owned(const Owned&) = delete;
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object, other.object);
    return *this;
  }
  ~Owned() { Py_XDECREF(object); }
  explicit operator bool() const { return object != nullptr; }
  PyObject* release() { return std::exchange(object, nullptr); }
};

}  // namespace
