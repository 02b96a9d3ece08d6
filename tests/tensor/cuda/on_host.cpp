/* on_host.cpp - the one definition of the switch between threads of a block (cuda_on_host.h). */
#define CPL_ON_HOST_MAIN
#include "tensor/cuda/device.h"
