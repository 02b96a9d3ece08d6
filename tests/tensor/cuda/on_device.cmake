# Test programs of models and training with the emulated GPU as their backend: as far.h's, by
# tests/tensor/far/wrap.c. A sample in `make test`, the rest with the label `far`.
set(ON_DEVICE "OMP_WAIT_POLICY=passive;COUPLET_TEST_BACKEND=$<TARGET_FILE:couplet_cuda_on_host>")
foreach(name IN LISTS TESTS_ON_FAR ITEMS tensor/cuda/test_launches)
    string(REPLACE "/" "_" program ${name})
    add_test(NAME cuda/${name} COMMAND ${program} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(cuda/${name} PROPERTIES LABELS far SKIP_RETURN_CODE 77 TIMEOUT 600 ENVIRONMENT "${ON_DEVICE}")
endforeach()
set_tests_properties(cuda/train/test_golden cuda/train/test_loop cuda/model/test_moe cuda/tensor/cuda/test_launches
                     PROPERTIES LABELS "")

add_executable(tensor_cuda_test_launches tensor/cuda/test_launches.c)
target_link_libraries(tensor_cuda_test_launches PRIVATE couplet_far couplet_static PkgConfig::CMOCKA)
target_compile_options(tensor_cuda_test_launches PRIVATE -Wno-conversion)
add_dependencies(tensor_cuda_test_launches couplet_cuda_on_host)
