// The step program as the Python module shows it.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "module.h"
#include "step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvist {

namespace {

typedef std::tuple<Plan*, Array, Array> Group;
typedef std::tuple<Address, Address, int, int> Rope;

void add_layer(Program& program, const View& view, bool writes, int group, int rope, int q_heads, const View& near_view,
               int near_group, bool k_rotated, bool v_rotated, Address k_mean, float scale, float softcap, int activation,
               bool norms_whole, const Product& qkv, const Product& o,
               const Product& gate_up, const Product& down, Address attn_norm, Address attn_post_norm, Address ffn_norm,
               Address ffn_post_norm, Address q_norm, Address k_norm) {
    program.add({view, writes, group, rope, q_heads, near_view, near_group, {k_rotated, v_rotated, at<float>(k_mean)}, scale, softcap, activation, norms_whole, qkv, o, gate_up, down,
                 at<float>(attn_norm), at<float>(attn_post_norm), at<float>(ffn_norm), at<float>(ffn_post_norm),
                 at<float>(q_norm), at<float>(k_norm)});
}

void set_ropes(Program& program, const std::vector<Rope>& ropes) {
    std::vector<RopeRows> rows;
    for (const auto& [cos, sin, known, half] : ropes) rows.push_back({at<float>(cos), at<float>(sin), known, half});
    program.set_ropes(std::move(rows));
}

void run(Program& program, Array tokens, Array positions, const std::vector<Group>& groups, Array logit_rows,
         Address pool, int64_t blocks, int64_t block_bytes, Address logits) {
    const size_t rows = tokens.size();
    Step step{tokens.data(), positions.data(), (int)rows, {}, logit_rows.data(), (int)logit_rows.size(),
              at<uint8_t>(pool), blocks, block_bytes, at<float>(logits)};
    bool rowwise = positions.size() == rows;
    for (const auto& [plan, block, slot] : groups) {
        rowwise = rowwise && plan && block.size() == rows && slot.size() == rows;
        step.groups.push_back({plan, block.data(), slot.data()});
    }
    if (!rowwise) throw std::invalid_argument("positions, block and slot need one entry a row");
    nb::gil_scoped_release released;
    program.run(step);
}

}  // namespace

void bind_step(nb::module_& m) {
    nb::class_<Product>(m, "Product", "Weights [outputs, inputs] and a bias, by address.")
        .def("__init__", [](Product* self, Address w, int element, int outputs, int inputs, Address bias) {
            new (self) Product{at<void>(w), element, outputs, inputs, at<float>(bias)};
        });
    nb::class_<Program>(m, "Program", "A decoder's step. Used by one thread at a time.")
        .def("__init__",
             [](Program* self, int hidden, float eps, float embedding_scale, const Product& embed, const Product& head,
                Address final_norm) {
                 new (self) Program(hidden, eps, embedding_scale, embed, head, at<float>(final_norm));
             })
        .def("add", &add_layer, "view"_a, "writes"_a, "group"_a, "rope"_a, "q_heads"_a, "near_view"_a, "near_group"_a,
             "k_rotated"_a, "v_rotated"_a, "k_mean"_a, "scale"_a, "softcap"_a,
             "activation"_a, "norms_whole"_a, "qkv"_a, "o"_a, "gate_up"_a, "down"_a, "attn_norm"_a, "attn_post_norm"_a,
             "ffn_norm"_a, "ffn_post_norm"_a, "q_norm"_a, "k_norm"_a)
        .def("set_ropes", &set_ropes)
        .def("run", &run);
}

}  // namespace kvist
