# `make cuda` builds couplet-cuda.so, the CUDA backend, beside the program, if nvcc is found. The CUDA runtime is
# linked statically. cuBLASLt is opened when a device is opened.
set(COUPLET_CUDA_MODULE couplet-cuda.so CACHE STRING "The module that is installed, below the build folder")
find_program(COUPLET_NVCC nvcc HINTS /usr/local/cuda/bin)
if(NOT COUPLET_NVCC)
    add_custom_target(cuda COMMAND ${CMAKE_COMMAND} -E echo "make cuda needs nvcc, of CUDA 13: it is not in PATH"
                      COMMAND false VERBATIM)
    return()
endif()

set(CUDA_FLAGS -std=c++17 -O3 --Werror all-warnings --compress-mode=size
    -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=
    -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_90,code=compute_90
    -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/include)
option(COUPLET_CHECK_KERNELS "make cuda fails where a kernel spills or is not on the cores it was written for" OFF)
if(COUPLET_CHECK_KERNELS)
    set(CUDA_CHECK python3 ${CMAKE_SOURCE_DIR}/tools/check_kernels.py)
endif()
file(GLOB CUDA_C_SOURCES CONFIGURE_DEPENDS src/tensor/cuda/*.c)
file(GLOB CUDA_KERNELS CONFIGURE_DEPENDS src/tensor/cuda/*.cu)
file(GLOB CUDA_HEADERS CONFIGURE_DEPENDS src/tensor/cuda/*.h src/tensor/cuda/*.def src/tensor/*.h)
set(CUDA_FOLDER ${CMAKE_BINARY_DIR}/cuda)
file(MAKE_DIRECTORY ${CUDA_FOLDER})
add_library(couplet_cuda_c OBJECT EXCLUDE_FROM_ALL ${CUDA_C_SOURCES} src/base/status.c)
target_include_directories(couplet_cuda_c PRIVATE include src)
target_compile_definitions(couplet_cuda_c PRIVATE COUPLET_VERSION="${COUPLET_VERSION}" ${COUPLET_CUDA_MODULE_VERSION})

set(CUDA_OBJECTS)
foreach(source IN LISTS CUDA_KERNELS)
    get_filename_component(name ${source} NAME_WE)
    add_custom_command(OUTPUT ${CUDA_FOLDER}/${name}.o DEPENDS ${source} ${CUDA_HEADERS}
                       COMMAND ${CUDA_CHECK} ${COUPLET_NVCC} ${CUDA_FLAGS} -c ${source} -o ${CUDA_FOLDER}/${name}.o VERBATIM)
    list(APPEND CUDA_OBJECTS ${CUDA_FOLDER}/${name}.o)
endforeach()
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/couplet-cuda.so DEPENDS ${CUDA_OBJECTS} couplet_cuda_c
                   COMMAND ${COUPLET_NVCC} -shared -cudart static -Xlinker -s,-z,relro,-z,now -o ${CMAKE_BINARY_DIR}/couplet-cuda.so ${CUDA_OBJECTS}
                           $<TARGET_OBJECTS:couplet_cuda_c> -ldl
                   COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(cuda DEPENDS ${CMAKE_BINARY_DIR}/couplet-cuda.so)
