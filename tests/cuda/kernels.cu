// Shows that nvcc takes the kernels that the emulation is tested with.
#include "kernels.cuh"

template __global__ void kernels::sum_kernel<float>(const float*, float*, int64_t);
template __global__ void kernels::reverse_kernel<true>(const int*, int*);
