// The functions of one instruction set that isa.cpp puts into its table.
#pragma once

#include "table.h"

namespace kvist::KVIST_ISA {

void cell(const Cell&);
void merge(const Merge&);
void linear(const Linear&, int out_begin, int out_end);
void quantise(const Linear&, Quantised* to, int row_begin, int row_end);
void packed(const Linear&, const Quantised* x, int tile_begin, int tile_end);
void rms_norm(const float* x, const float* w, float eps, float* y, int rows, int width);
void add_rms_norm(float* x, const float* delta, const float* w, float eps, float* y, int rows, int width);
void gated(const float* gate_up, int activation, float* y, int rows, int width);
void rotate(const Rotate&, int row_begin, int row_end);
void hadamard(float* x, int dim, int begin, int end);
float read(const float* p, size_t n);
float multiply(size_t n);

}  // namespace kvist::KVIST_ISA
