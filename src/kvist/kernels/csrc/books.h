#pragma once
#include <nanobind/nanobind.h>

namespace kvist {

void bind_books(nanobind::module_& m);

}
