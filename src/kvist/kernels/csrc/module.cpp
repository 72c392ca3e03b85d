// The Python module.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "books.h"
#include "dispatch.h"
#include "module.h"
#include "plan.h"
#include "team.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace kvist;

namespace {

Plan::Ints ints(const Array& a) { return Plan::Ints(a.data(), a.data() + a.size()); }

void run_plan(Plan& plan, const View& view, Address q, Address pool, int64_t blocks, int64_t block_bytes, int q_heads,
              float scale, float softcap, Address out) {
    plan.run(table(), view, {at<float>(q), at<uint8_t>(pool), block_bytes, blocks, q_heads, scale, softcap, at<float>(out)},
             threads());
}

void run_linear(Address x, Address w, Address bias, Address y, int rows, int in, int out, int element) {
    linear({at<float>(x), at<void>(w), at<float>(bias), at<float>(y), rows, in, out, element});
}

void run_rotate(const View& v, Address qkv, Address pool, int64_t blocks, int64_t block_bytes, int q_heads, Address cos,
                Address sin, int known_positions, int rotary_half, Array positions, Array block, Array slot, Address q_norm,
                Address k_norm, float eps, Address q_out, int rows) {
    auto rowwise = [&](const Array& a) { return (int)a.size() == rows; };
    if (!rowwise(positions) || !rowwise(block) || !rowwise(slot))
        throw std::invalid_argument("positions, block and slot need one entry a row");
    if (2 * rotary_half > v.key_dim || v.key_dim > MAX_DIM) throw std::invalid_argument("rotary_dim or key_dim is too large");
    for (int r = 0; r < rows; r++) {
        if (cos && (unsigned)positions.data()[r] >= (unsigned)known_positions)
            throw std::invalid_argument("position " + std::to_string(positions.data()[r]) + " has no cos/sin row");
        if (block.data()[r] >= blocks || (block.data()[r] >= 0 && (unsigned)slot.data()[r] >= (unsigned)v.tokens_per_block))
            throw std::invalid_argument("row " + std::to_string(r) + " would be written outside the pool");
    }
    nb::gil_scoped_release released;
    rotate({at<float>(qkv), at<uint8_t>(pool), block_bytes, v.k_offset, v.v_offset, v.head_bytes, q_heads, v.kv_heads,
            v.key_dim, v.value_dim, v.k_element, v.v_element, at<float>(cos), at<float>(sin), rotary_half, v.tokens_per_block,
            positions.data(), block.data(), slot.data(), at<float>(q_norm), at<float>(k_norm), eps, at<float>(q_out)},
           rows);
}

}  // namespace

NB_MODULE(kvist_native, m) {
    m.attr("MAX_DIM") = MAX_DIM;
    bind_books(m);
    m.def("available", &available, "Instruction sets this processor runs, best first.");
    m.def("choose", &choose, "name"_a, "Use one instruction set for all calls from here on.");
    m.def("isa", [] { return std::string(table().name); }, "The instruction set in use.");
    m.def("threads", &threads, "Threads a call may use.");
    m.def("read_bandwidth", &read_bandwidth, "bytes"_a, "threads"_a, "seconds"_a = 0.5, Released(), "Bytes a second.");
    m.def("multiply_rate", &multiply_rate, "threads"_a, "seconds"_a = 0.5, Released(), "Multiply-adds a second.");

    nb::class_<View>(m, "View")
        .def(nb::init<int64_t, int64_t, int64_t, int, int, int, int, int, int>(), "k_offset"_a, "v_offset"_a,
             "head_bytes"_a, "kv_heads"_a, "key_dim"_a, "value_dim"_a, "tokens_per_block"_a, "k_element"_a, "v_element"_a);

    nb::class_<Plan>(m, "Plan", "A work list made ready. Used by one thread at a time.")
        .def("__init__",
             [](Plan* self, Array position, Array block_start, Array blocks, Array row_start, Array rows, Array first,
                Array end, Array sinks) {
                 new (self) Plan(ints(position), ints(block_start), ints(blocks), ints(row_start), ints(rows),
                                 ints(first), ints(end), ints(sinks));
             })
        .def_prop_ro("rows", &Plan::rows)
        .def_prop_ro("units", &Plan::units)
        .def_prop_ro("waves", &Plan::waves)
        .def("run", &run_plan, Released());

    m.def("linear", &run_linear, Released());
    m.def("rms_norm", [](Address x, Address w, float eps, Address y, int rows, int width) {
        rms_norm(at<float>(x), at<float>(w), eps, at<float>(y), rows, width);
    }, Released());
    m.def("add_rms_norm", [](Address x, Address delta, Address w, float eps, Address y, int rows, int width) {
        add_rms_norm(at<float>(x), at<float>(delta), at<float>(w), eps, at<float>(y), rows, width);
    }, Released());
    m.def("gated", [](Address gate_up, int activation, Address y, int rows, int width) {
        gated(at<float>(gate_up), activation, at<float>(y), rows, width);
    }, Released());
    m.def("norm_rotate_write", &run_rotate);
    bind_step(m);
}
