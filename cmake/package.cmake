# Makes packages by CPack (make package): for Debian couplet, libcouplet0, libcouplet-dev and couplet-cuda, from the
# components of cmake/install.cmake, and a tarball of all. CPack reads cmake/package_options.cmake when it runs.
set(CPACK_PACKAGE_VENDOR "The Couplet contributors")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each component has its own
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/package_options.cmake)
set(CPACK_COUPLET_BUILD ${CMAKE_BINARY_DIR})
set(CPACK_COUPLET_MODULES ${COUPLET_MODULES})
set(CPACK_COUPLET_HEADER ${DNNL_INCLUDE_DIR}/dnnl.h)
set(CPACK_COUPLET_MPI ${COUPLET_MPI_MODULES})
set(CPACK_COUPLET_REMOTE ${CPL_REMOTE})
set(CPACK_COUPLET_CUDA ${COUPLET_CUDA_MODULE})

# ---- Debian: its own names for the manual page and the completion of zsh, copyright and changelog ----

# The maintainer is named as by Debian's own tools. A field without an address is not valid.
set(maintainer "The Couplet contributors <nobody@couplet.invalid>")
if(DEFINED ENV{DEBFULLNAME} AND DEFINED ENV{DEBEMAIL})
    set(maintainer "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${maintainer})
set(CPACK_COMPONENTS_ALL program library development cuda)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(LIBRARY_PACKAGE libcouplet${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME couplet)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${LIBRARY_PACKAGE})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SOURCE couplet)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libcouplet-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SOURCE couplet)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CUDA_PACKAGE_NAME couplet-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_SOURCE couplet)
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION non-free/science)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "trains and inspects Mixture-of-Experts language models
The program couplet trains, inspects, evaluates and compares Mixture-of-Experts
language models on CPUs, with the expert-router coupling loss (ERC). With Open
MPI or MPICH it runs on several machines.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "expert-router coupling loss of Mixture-of-Experts - library
The library computes the expert-router coupling loss (ERC) of
Mixture-of-Experts models and its gradient on the caller's memory.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "expert-router coupling loss of Mixture-of-Experts - development
The header of the library, the static library, and the files for pkg-config and
CMake. The library computes the expert-router coupling loss (ERC) of
Mixture-of-Experts models and its gradient.")
set(CPACK_COMPONENT_CUDA_DESCRIPTION "trains Mixture-of-Experts language models on a GPU - module of couplet
With this module the program couplet trains, evaluates and generates on one
NVIDIA GPU (Ampere or later). It needs a driver of version 580 or later and
NVIDIA's libcublasLt.so.13, which are not in Debian.")

set(DEBIAN ${CMAKE_BINARY_DIR}/packaging/debian)
file(WRITE ${DEBIAN}/shlibs "libcouplet ${PROJECT_VERSION_MAJOR} ${LIBRARY_PACKAGE} (>= ${PROJECT_VERSION})\n")
file(WRITE ${DEBIAN}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${DEBIAN}/shlibs ${DEBIAN}/triggers)

# The text of a licence as a field of the copyright file: from `begin` on, indented.
function(read_licence name begin out)
    file(READ ${CMAKE_SOURCE_DIR}/data/eval/LICENSES/${name}.txt text)
    string(FIND "${text}" "${begin}" at)
    string(SUBSTRING "${text}" ${at} -1 text)
    string(STRIP "${text}" text)
    string(REPLACE "\n\n" "\n.\n" text "${text}")
    string(REPLACE "\n" "\n " text " ${text}")
    set(${out} "${text}" PARENT_SCOPE)
endfunction()
read_licence(MIT "Permission is" COUPLET_TEXT_MIT)
read_licence(BSD-2-Clause "Redistribution and use" COUPLET_TEXT_BSD)
configure_file(cmake/debian/copyright.in ${DEBIAN}/copyright @ONLY)

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # SOURCE_DATE_EPOCH if it is set
file(WRITE ${DEBIAN}/changelog "couplet (${PROJECT_VERSION}) bookworm; urgency=medium

  * The changes are in /usr/share/doc/couplet/CHANGELOG.md.

 -- ${maintainer}  ${date}
")
find_program(GZIP gzip)
if(GZIP)
    execute_process(COMMAND ${GZIP} -9nf ${DEBIAN}/changelog COMMAND_ERROR_IS_FATAL ANY)
    add_custom_command(OUTPUT packaging/debian/couplet.1.gz DEPENDS couplet.1 VERBATIM
                       COMMAND ${GZIP} -9nc couplet.1 > packaging/debian/couplet.1.gz)
    add_custom_target(couplet_debian ALL DEPENDS packaging/debian/couplet.1.gz)
    install(FILES ${DEBIAN}/couplet.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
            COMPONENT program EXCLUDE_FROM_ALL)
endif()
install(FILES ${CMAKE_BINARY_DIR}/_couplet DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions
        COMPONENT program EXCLUDE_FROM_ALL)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER ${component} upper)
    install(FILES ${DEBIAN}/copyright ${DEBIAN}/changelog.gz COMPONENT ${component} EXCLUDE_FROM_ALL
            DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
endforeach()

# ---- the tarball ----

set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)
set(CPACK_ARCHIVE_FILE_NAME couplet-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
include(CPack)
