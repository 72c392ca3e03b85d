// The Python module.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "books.h"
#include "dispatch.h"
#include "lloyd.h"
#include "module.h"
#include "plan.h"
#include "team.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace kvist;

namespace {

Plan::Ints ints(const Array& a) { return Plan::Ints(a.data(), a.data() + a.size()); }

void run_plan(Plan& plan, const View& view, Address q, Address pool, int64_t blocks, int64_t block_bytes, int q_heads,
              float scale, float softcap, Address out, Address state, bool first, bool last) {
    plan.run(table(), view,
             {at<float>(q), at<uint8_t>(pool), block_bytes, blocks, q_heads, scale, softcap, at<float>(out), at<float>(state),
              first, last},
             threads());
}

void run_linear(Address x, Address w, Address bias, Address y, int rows, int in, int out, int element) {
    linear({at<float>(x), at<void>(w), at<float>(bias), at<float>(y), rows, in, out, element});
}

typedef std::tuple<const View*, Array, Array> Target;

// Where rows go by one view. Throws where that is outside the pool.
Place place(const Target& to, int rows, int64_t blocks) {
    const auto& [v, block, slot] = to;
    if ((int)block.size() != rows || (int)slot.size() != rows) throw std::invalid_argument("block and slot need one entry a row");
    for (int r = 0; r < rows; r++)
        if (block.data()[r] >= blocks || (block.data()[r] >= 0 && (unsigned)slot.data()[r] >= (unsigned)v->tokens_per_block))
            throw std::invalid_argument("row " + std::to_string(r) + " would be written outside the pool");
    return place_of(*v, block.data(), slot.data());
}

void run_rotate(const std::vector<Target>& targets, Address qkv, Address pool, int64_t blocks, int64_t block_bytes,
                int q_heads, Address cos, Address sin, int known_positions, int rotary_half, Array positions,
                Address q_norm, Address k_norm, float eps, Address q_out, int rows, bool k_rotated, bool v_rotated,
                Address k_mean) {
    if (targets.empty() || targets.size() > 2) throw std::invalid_argument("rows go to one place or two");
    const View& v = *std::get<0>(targets[0]);
    if ((int)positions.size() != rows) throw std::invalid_argument("positions need one entry a row");
    if (2 * rotary_half > v.key_dim || v.key_dim > MAX_DIM) throw std::invalid_argument("rotary_dim or key_dim is too large");
    for (int r = 0; r < rows; r++)
        if (cos && (unsigned)positions.data()[r] >= (unsigned)known_positions)
            throw std::invalid_argument("position " + std::to_string(positions.data()[r]) + " has no cos/sin row");
    Rotate p{at<float>(qkv), at<uint8_t>(pool), block_bytes, q_heads, v.kv_heads, v.key_dim, v.value_dim, at<float>(cos),
             at<float>(sin), rotary_half, positions.data(), at<float>(q_norm), at<float>(k_norm), eps, at<float>(q_out),
             {k_rotated, v_rotated, at<float>(k_mean)}, 0, {}};
    for (const Target& to : targets) p.places[p.n_places++] = place(to, rows, blocks);
    nb::gil_scoped_release released;
    rotate(p, rows);
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
        .def("run", &run_plan, "view"_a, "q"_a, "pool"_a, "blocks"_a, "block_bytes"_a, "q_heads"_a, "scale"_a, "softcap"_a,
             "out"_a, "state"_a = 0, "first"_a = true, "last"_a = true, Released());

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
    m.def("hadamard", [](Address x, int rows, int dim) { hadamard(at<float>(x), rows, dim); }, Released());
    m.def("levels", [](int bits) {
        const int8_t* of = LEVELS[bits - LEAST_BITS];
        return std::vector<int>(of, of + (1 << bits));
    }, "Levels of codes of so many bits.");
    m.def("thresholds", [](int bits) {
        const float* of = THRESHOLDS[bits - LEAST_BITS];
        return std::vector<float>(of, of + (1 << bits) - 1);
    });
    bind_step(m);
}
