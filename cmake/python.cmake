# The Python package (python/pyproject.toml): the library with the door of couplet.h and the reader of
# checkpoints, and the program beside it. Both keep the libraries they link to where the system has them.
add_library(couplet_python SHARED python/native/moe_map.c)
foreach(objects IN LISTS COUPLET_OBJECT_LIBRARIES)
    target_sources(couplet_python PRIVATE $<TARGET_OBJECTS:${objects}>)
endforeach()
target_include_directories(couplet_python PRIVATE include src python/native)
target_link_libraries(couplet_python PRIVATE ${COUPLET_LINKS})
set_target_properties(couplet_python PROPERTIES OUTPUT_NAME couplet_python)

install(TARGETS couplet_python LIBRARY DESTINATION couplet COMPONENT python)
install(TARGETS couplet RUNTIME DESTINATION couplet/bin COMPONENT python)
