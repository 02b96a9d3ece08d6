# Builds the wheel couplet_native (python/native/pyproject.toml) with the program and the library behind the PyTorch
# operator. The library has only couplet.h and no oneDNN, since the coupling loss multiplies with its own kernels.
add_library(couplet_python SHARED python/native/no_product.c)
foreach(isa IN LISTS COUPLET_ISAS)
    target_sources(couplet_python PRIVATE $<TARGET_OBJECTS:couplet_cpu_${isa}>)
endforeach()
target_include_directories(couplet_python PRIVATE include src)
add_dependencies(couplet_python couplet_static)
target_link_libraries(couplet_python PRIVATE $<TARGET_FILE:couplet_static> OpenMP::OpenMP_C m)
target_link_options(couplet_python PRIVATE -Wl,-u,cpl_erc_run -Wl,--gc-sections
                    -Wl,--version-script=${CMAKE_SOURCE_DIR}/python/native/exports.map)
set_target_properties(couplet_python PROPERTIES OUTPUT_NAME couplet_python)

install(TARGETS couplet_python LIBRARY DESTINATION couplet_native COMPONENT python)
install(TARGETS couplet RUNTIME DESTINATION couplet_native/bin COMPONENT python)
install_python(couplet_native/lib/couplet python)

# COUPLET_BUNDLE (make wheels): every library that the two link to, libc and libm apart, lies in couplet_native/lib with its
# licence, under its own name: a libgomp.so.1 that PyTorch has loaded then serves the operator too. RPATH, not
# RUNPATH, since oneDNN's own libraries are looked for through it.
if(COUPLET_BUNDLE)
    target_link_options(couplet_python PRIVATE -Wl,--disable-new-dtags)
    target_link_options(couplet PRIVATE -Wl,--disable-new-dtags)
    set_target_properties(couplet_python PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
    set_target_properties(couplet PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
    install(CODE "set(version ${PROJECT_VERSION})
                  set(program \"$<TARGET_FILE:couplet>\")
                  set(module \"${CMAKE_BINARY_DIR}/${COUPLET_CUDA_MODULE}\")
                  set(libraries_to \"\${CMAKE_INSTALL_PREFIX}/couplet_native/lib\")
                  set(licenses_to \"\${CMAKE_INSTALL_PREFIX}/couplet_native/licenses\")" COMPONENT python)
    install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/bundle.cmake COMPONENT python)
endif()

# With nvcc it also has the CUDA backend, above the program, so that it finds cuBLASLt in pip's nvidia-cublas, which
# lies beside couplet_native.
if(COUPLET_BUNDLE AND COUPLET_NVCC)
    add_dependencies(couplet_python cuda)
    install(FILES ${CMAKE_BINARY_DIR}/${COUPLET_CUDA_MODULE} DESTINATION couplet_native COMPONENT python)
endif()
