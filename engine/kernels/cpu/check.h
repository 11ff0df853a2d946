// Says what is wrong with a matrix before a kernel reads it.
#pragma once

#include "stoker_kernels.h"

namespace stoker {

int check_matrix(const stoker_matrix& matrix);
int check_numbers(const stoker_matrix& matrix);  // its scales are finite; of a checked matrix
int scale_size(int scale_type);  // bytes; 0 for none, -1 for unknown

}  // namespace stoker
