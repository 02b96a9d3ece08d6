# The CUDA backend on the host: its sources by a C++ compiler, with cuda_on_host.h in CUDA's place and
# vendor_host.cpp in that of vendor_nvidia.cu. Left out where there is no C++ compiler, and where the processor is
# not x86-64: the switch between threads is its assembler.
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
endif()
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)

set(CUDA_ON_HOST ${CMAKE_CURRENT_BINARY_DIR}/on_host)
file(MAKE_DIRECTORY ${CUDA_ON_HOST})
file(GLOB CUDA_C_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tensor/cuda/*.c)
file(GLOB CUDA_KERNELS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tensor/cuda/*.cu)
list(FILTER CUDA_KERNELS EXCLUDE REGEX "vendor_nvidia\\.cu$")
set_source_files_properties(${CUDA_KERNELS} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
add_library(cuda_on_host OBJECT EXCLUDE_FROM_ALL ${CUDA_C_SOURCES} ${CUDA_KERNELS}
            tensor/cuda/on_host.cpp tensor/cuda/vendor_host.cpp)
target_include_directories(cuda_on_host PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/tensor/cuda)
target_compile_definitions(cuda_on_host PRIVATE COUPLET_VERSION="${COUPLET_VERSION}" ${COUPLET_CUDA_MODULE_VERSION}
                           LIBCUBLASLT="libcublasLt-test.so")
target_link_libraries(cuda_on_host PUBLIC couplet_static)

# As the program meets it: a module beside it.
add_library(couplet_cuda_on_host MODULE)
target_link_libraries(couplet_cuda_on_host PRIVATE cuda_on_host couplet_static)
set_target_properties(couplet_cuda_on_host PROPERTIES PREFIX "" OUTPUT_NAME couplet-cuda LINKER_LANGUAGE CXX
                      LIBRARY_OUTPUT_DIRECTORY ${CUDA_ON_HOST})
add_executable(program_on_host ${CMAKE_SOURCE_DIR}/src/cli/main.c)
set_target_properties(program_on_host PROPERTIES OUTPUT_NAME couplet RUNTIME_OUTPUT_DIRECTORY ${CUDA_ON_HOST})
target_link_libraries(program_on_host PRIVATE couplet_cli)
add_dependencies(program_on_host couplet_cuda_on_host)

# A test that loads the module beside it.
function(add_test_of_module name)
    add_executable(tensor_cuda_${name} tensor/cuda/${name}.c ${ARGN})
    target_link_libraries(tensor_cuda_${name} PRIVATE couplet_static PkgConfig::CMOCKA)
    target_include_directories(tensor_cuda_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR})
    target_compile_options(tensor_cuda_${name} PRIVATE -Wno-conversion)
    set_target_properties(tensor_cuda_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CUDA_ON_HOST})
    add_dependencies(tensor_cuda_${name} couplet_cuda_on_host)
    add_test(NAME tensor/cuda/${name} COMMAND tensor_cuda_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()

# test_cuda runs on a GPU as well, with the module of `make cuda` beside it.
add_test_of_module(test_cuda tensor/cuda/copies.c far_operations.inc)
add_dependencies(tensor_cuda_test_cuda couplet_far)
add_test_of_module(test_room)
set_tests_properties(tensor/cuda/test_cuda PROPERTIES TIMEOUT 600 ENVIRONMENT OMP_WAIT_POLICY=passive)
add_check(tools/device tests/tools/check_device.py $<TARGET_FILE:program_on_host>)
add_dependencies(program_on_host operations) # of bench, which is no part of a plain build
add_check(cli/cuda_memory tests/cli/cuda/check_cuda_memory.py $<TARGET_FILE:program_on_host>)
add_check(cli/cuda tests/cli/cuda/check_cuda.py $<TARGET_FILE:program_on_host> $<TARGET_FILE:couplet>)

# The same program beside a module whose operations work in parts from small sizes on.
set(CUDA_IN_PARTS erc_sweep experts gemm reduce xent)
list(TRANSFORM CUDA_IN_PARTS REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/tensor/cuda/\\1.cu" OUTPUT_VARIABLE IN_PARTS_SOURCES)
list(JOIN CUDA_IN_PARTS "|" IN_PARTS_NAMES)
add_library(cuda_in_parts OBJECT EXCLUDE_FROM_ALL ${IN_PARTS_SOURCES})
target_include_directories(cuda_in_parts PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/tensor/cuda ${CUDA_ON_HOST})
target_compile_definitions(cuda_in_parts PRIVATE CPL_CUDA_SMALL_PARTS)
target_link_libraries(cuda_in_parts PUBLIC couplet_static)
add_library(couplet_cuda_in_parts MODULE $<TARGET_OBJECTS:cuda_in_parts>
            $<FILTER:$<TARGET_OBJECTS:cuda_on_host>,EXCLUDE,/\(${IN_PARTS_NAMES}\)\.cu\.>)
target_link_libraries(couplet_cuda_in_parts PRIVATE couplet_static)
set_target_properties(couplet_cuda_in_parts PROPERTIES PREFIX "" OUTPUT_NAME couplet-cuda LINKER_LANGUAGE CXX
                      LIBRARY_OUTPUT_DIRECTORY ${CUDA_ON_HOST}/in_parts)
add_custom_command(TARGET couplet_cuda_in_parts POST_BUILD COMMAND ${CMAKE_COMMAND} -E copy
                   $<TARGET_FILE:tensor_cuda_test_cuda> ${CUDA_ON_HOST}/in_parts/test_cuda VERBATIM)
add_dependencies(couplet_cuda_in_parts tensor_cuda_test_cuda)
add_test(NAME tensor/cuda/test_cuda_in_parts COMMAND ${CUDA_ON_HOST}/in_parts/test_cuda "*, [ol]*es"
         WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(tensor/cuda/test_cuda_in_parts PROPERTIES TIMEOUT 600 ENVIRONMENT OMP_WAIT_POLICY=passive)

# What must be refused, and failures in mid-run; the library stands in for cuBLASLt.
add_library(fake_cublaslt MODULE tensor/cuda/fake_cublaslt.c)
set_target_properties(fake_cublaslt PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CUDA_ON_HOST})
target_include_directories(fake_cublaslt PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(fake_cublaslt PRIVATE COUPLET_VERSION="${COUPLET_VERSION}" ${COUPLET_CUDA_MODULE_VERSION})
add_check(cli/cuda_refusals tests/cli/cuda/check_cuda_refusals.py $<TARGET_FILE:program_on_host> $<TARGET_FILE:couplet>
          $<TARGET_FILE:fake_cublaslt>)

# Faults of kernels that the emulation must notice.
add_executable(tensor_cuda_test_on_host tensor/cuda/test_on_host.cpp tensor/cuda/on_host.cpp)
target_include_directories(tensor_cuda_test_on_host PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include
                           ${CMAKE_CURRENT_SOURCE_DIR}/tensor/cuda)
add_test(NAME tensor/cuda/test_on_host COMMAND tensor_cuda_test_on_host WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
