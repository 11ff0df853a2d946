// Says what is wrong with a matrix before anything of it is read.
#pragma once

#include "stoker_kernels.h"

namespace stoker {

int check_matrix(const stoker_matrix& matrix);
int scale_size(int scale_type);  // bytes; 0 for none, -1 for unknown

}  // namespace stoker
