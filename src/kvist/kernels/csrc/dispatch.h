// The chosen instruction set, and the dense operations spread over threads.
#pragma once

#include <string>
#include <vector>

#include "table.h"

namespace kvist {

// Instruction sets that were compiled in and that this processor runs, best first.
std::vector<std::string> available();

// Makes ``name`` the one all calls use. Throws std::invalid_argument that lists what exists.
void choose(const std::string& name);

const Table& table();

void linear(const Linear& p);
void rms_norm(const float* x, const float* w, float eps, float* y, int rows, int width);
void add_rms_norm(float* x, const float* delta, const float* w, float eps, float* y, int rows, int width);
void gated(const float* gate_up, int activation, float* y, int rows, int width);
void rotate(const Rotate& p, int rows);
void hadamard(float* x, int rows, int dim);

// Measured: bytes a second of sequential reading, multiply-adds a second in registers.
double read_bandwidth(size_t bytes, int threads, double seconds);
double multiply_rate(int threads, double seconds);

}  // namespace kvist
