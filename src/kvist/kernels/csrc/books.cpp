// The books of the cache, many blocks at once: what cache/bulk.py describes, on the interpreter's own lists.
#include "books.h"

#include <cstdint>
#include <cstring>

namespace nb = nanobind;

namespace {

// Borrowed view of a list or tuple.
struct Items {
    PyObject** at;
    Py_ssize_t size;

    explicit Items(nb::handle h) {
        if (!PyList_Check(h.ptr()) && !PyTuple_Check(h.ptr())) throw nb::type_error("a list or tuple");
        at = PySequence_Fast_ITEMS(h.ptr());
        size = PySequence_Fast_GET_SIZE(h.ptr());
    }

    // The slot of values that item i names.
    PyObject** slot(Py_ssize_t i, const Items& values) const {
        Py_ssize_t index = PyLong_AsSsize_t(at[i]);
        if (index == -1 && PyErr_Occurred()) throw nb::python_error();
        if (index < 0 || index >= values.size) throw nb::index_error("a block id outside the pool");
        return values.at + index;
    }
};

Items list_of(nb::handle h) {
    if (!PyList_Check(h.ptr())) throw nb::type_error("a list");
    return Items(h);
}

void put(PyObject** slot, PyObject* value) {
    PyObject* old = *slot;
    Py_INCREF(value);
    *slot = value;
    Py_DECREF(old);
}

nb::bytes pack(nb::handle tokens) {
    Items items(tokens);
    nb::object out = nb::steal(PyBytes_FromStringAndSize(nullptr, items.size * 4));
    if (!out.is_valid()) throw nb::python_error();
    char* to = PyBytes_AS_STRING(out.ptr());
    for (Py_ssize_t i = 0; i < items.size; i++) {
        if (!PyLong_Check(items.at[i])) throw nb::type_error("a token id is no int");
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(items.at[i], &overflow);
        if (overflow || value < INT32_MIN || value > INT32_MAX) throw nb::value_error("a token id beyond 32 bits");
        uint32_t v = uint32_t(value);
        unsigned char bytes[4] = {uint8_t(v), uint8_t(v >> 8), uint8_t(v >> 16), uint8_t(v >> 24)};
        std::memcpy(to + i * 4, bytes, 4);
    }
    return nb::borrow<nb::bytes>(out);
}

// Small ints are one object each, so states are compared by address: another object reads as another state, and the
// caller then goes block by block.
bool swap(nb::handle blocks, nb::handle refs, nb::handle treed, nb::tuple before, nb::tuple now) {
    Items items(blocks), r = list_of(refs), t = list_of(treed);
    PyObject *r0 = nb::handle(before[0]).ptr(), *t0 = nb::handle(before[1]).ptr();
    PyObject *r1 = nb::handle(now[0]).ptr(), *t1 = nb::handle(now[1]).ptr();
    Py_ssize_t done = 0;
    for (; done < items.size; done++) {
        PyObject **a = items.slot(done, r), **b = items.slot(done, t);
        if (*a != r0 || *b != t0) break;
        put(a, r1);
        put(b, t1);
    }
    if (done == items.size) return true;
    while (done-- > 0) {
        put(items.slot(done, r), r0);
        put(items.slot(done, t), t0);
    }
    return false;
}

void fill(nb::handle values, nb::handle blocks, nb::handle value) {
    Items items(blocks), v = list_of(values);
    for (Py_ssize_t i = 0; i < items.size; i++) items.slot(i, v);
    for (Py_ssize_t i = 0; i < items.size; i++) put(items.slot(i, v), value.ptr());
}

nb::object only(nb::handle values, nb::handle blocks) {
    Items items(blocks), v = list_of(values);
    PyObject* first = items.size ? *items.slot(0, v) : Py_None;
    for (Py_ssize_t i = 1; i < items.size; i++)
        if (*items.slot(i, v) != first) return nb::none();
    return nb::borrow(first);
}

Py_ssize_t count(nb::handle values, nb::handle blocks, nb::handle value) {
    Items items(blocks), v = list_of(values);
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0; i < items.size; i++) n += *items.slot(i, v) == value.ptr();
    return n;
}

}  // namespace

void kvist::bind_books(nb::module_& m) {
    m.def("books_pack", &pack);
    m.def("books_swap", &swap);
    m.def("books_fill", &fill, nb::arg(), nb::arg(), nb::arg().none());
    m.def("books_only", &only);
    m.def("books_count", &count);
}
