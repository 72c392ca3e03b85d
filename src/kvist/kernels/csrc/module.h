// What the files of the Python module share. Tensors come in as addresses: the Python side has checked their shapes,
// types and layout.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace kvist {

typedef uintptr_t Address;
typedef nanobind::ndarray<const int, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu> Array;
typedef nanobind::call_guard<nanobind::gil_scoped_release> Released;

template <class T>
T* at(Address a) {
    return reinterpret_cast<T*>(a);
}

// Adds the step program (module_step.cpp).
void bind_step(nanobind::module_& m);

}  // namespace kvist
