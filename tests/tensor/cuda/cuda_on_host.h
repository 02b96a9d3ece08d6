#pragma once
#define __device__
#define __forceinline__ inline
#define __global__ static
struct dim3 {unsigned x,y,z;}; inline struct dim3 threadIdx, blockDim; inline void __syncthreads(){} template<class T> T __shfl_xor_sync(unsigned,T v,int){return v;}
#include <cstring>
