# The rules of `make install`: header, libraries, pkg-config and CMake files, program, manual page, completion,
# documents. The components program, library, development and cuda are Debian packages (cmake/package.cmake). Files
# that these packages have in another form belong to the component plain.
include(CMakePackageConfigHelpers)
list(JOIN COUPLET_MODULES " " COUPLET_PC_REQUIRES)

install(TARGETS couplet COMPONENT program)
if(COUPLET_MPI_MODULES)
    install(TARGETS ${COUPLET_MPI_MODULES} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/couplet
            COMPONENT program)
endif()
install_python(${CMAKE_INSTALL_LIBDIR}/couplet program)
install(FILES ${CMAKE_BINARY_DIR}/${COUPLET_CUDA_MODULE} DESTINATION ${CMAKE_INSTALL_LIBDIR}/couplet
        COMPONENT cuda OPTIONAL) # if `make cuda` has built it
install(TARGETS couplet_shared EXPORT coupletTargets
        LIBRARY COMPONENT library NAMELINK_COMPONENT development)
install(TARGETS couplet_static EXPORT coupletStaticTargets COMPONENT development)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

# CMake: find_package(couplet) gives couplet::couplet (shared) and couplet::couplet_static.
set_target_properties(couplet_shared PROPERTIES EXPORT_NAME couplet)
set(COUPLET_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/couplet)
# find_package does not search this folder if the build folder is in PATH: the files work only when installed.
set(COUPLET_PACKAGING ${CMAKE_BINARY_DIR}/packaging)
file(REMOVE ${CMAKE_BINARY_DIR}/coupletConfig.cmake) # of an older build
configure_package_config_file(cmake/coupletConfig.cmake.in ${COUPLET_PACKAGING}/coupletConfig.cmake
                              INSTALL_DESTINATION ${COUPLET_CMAKE_DIR})
write_basic_package_version_file(${COUPLET_PACKAGING}/coupletConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(EXPORT coupletTargets NAMESPACE couplet:: DESTINATION ${COUPLET_CMAKE_DIR} COMPONENT development)
install(EXPORT coupletStaticTargets NAMESPACE couplet:: DESTINATION ${COUPLET_CMAKE_DIR}
        COMPONENT development)
install(FILES ${COUPLET_PACKAGING}/coupletConfig.cmake
              ${COUPLET_PACKAGING}/coupletConfigVersion.cmake cmake/Finddnnl.cmake
        DESTINATION ${COUPLET_CMAKE_DIR} COMPONENT development)

# pkg-config: the prefix is that of the installation, or of a package (cmake/package_options.cmake). Libraries are
# named, and not required: pkg-config would pass their flags to users of the shared library.
list(FILTER COUPLET_DEPS_STATIC_LDFLAGS EXCLUDE REGEX "^-L/usr/lib(/|$)")
list(JOIN COUPLET_DEPS_STATIC_LDFLAGS " " COUPLET_PC_LIBRARIES)
set(COUPLET_PC_PREFIX @COUPLET_PC_PREFIX@)
configure_file(cmake/couplet.pc.in ${COUPLET_PACKAGING}/couplet.pc.in @ONLY)
install(CODE [[
    if(NOT COUPLET_PC_PREFIX)
        set(COUPLET_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
    endif()
    configure_file(${CMAKE_CURRENT_LIST_DIR}/packaging/couplet.pc.in ${CMAKE_CURRENT_LIST_DIR}/packaging/couplet.pc @ONLY)
]] COMPONENT development)
install(FILES ${COUPLET_PACKAGING}/couplet.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT development)

# The manual page and the completions are written by the program itself.
function(add_written_document file)
    add_custom_command(OUTPUT ${file} COMMAND couplet ${ARGN} > ${file} DEPENDS couplet VERBATIM)
    set_property(GLOBAL APPEND PROPERTY COUPLET_DOCUMENTS ${CMAKE_BINARY_DIR}/${file})
endfunction()
add_written_document(couplet.1 manual)
add_written_document(couplet.bash completion bash)
add_written_document(_couplet completion zsh)
get_property(COUPLET_DOCUMENTS GLOBAL PROPERTY COUPLET_DOCUMENTS)
add_custom_target(couplet_documents ALL DEPENDS ${COUPLET_DOCUMENTS})
install(FILES ${CMAKE_BINARY_DIR}/couplet.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT plain)
install(FILES ${CMAKE_BINARY_DIR}/couplet.bash RENAME couplet
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${CMAKE_BINARY_DIR}/_couplet DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
        COMPONENT plain)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT plain)
install(FILES README.md CHANGELOG.md CITATION.cff DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY data/eval/ DESTINATION ${CMAKE_INSTALL_DATADIR}/couplet/eval COMPONENT program)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs COMPONENT program)

# COUPLET_BUNDLE (the tarball of `make package`): the libraries that the program links to lie in
# lib/couplet, beside the MPI modules, with their licences in share/doc/couplet/licenses.
if(COUPLET_BUNDLE)
    foreach(target couplet couplet_shared)
        target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
    endforeach()
    set_target_properties(couplet PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/couplet")
    set_target_properties(couplet_shared PROPERTIES INSTALL_RPATH "$ORIGIN/couplet")
    install(CODE "set(version ${PROJECT_VERSION})
                  set(program \"$<TARGET_FILE:couplet>\")
                  set(module \"${CMAKE_BINARY_DIR}/${COUPLET_CUDA_MODULE}\")
                  set(libraries_to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/couplet\")
                  set(licenses_to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}/licenses\")"
            COMPONENT plain)
    install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/bundle.cmake COMPONENT plain)
endif()
