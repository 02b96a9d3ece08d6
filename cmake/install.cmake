# What `make install` puts where: header, libraries, pkg-config and CMake files, program, manual
# page, completion, documents.
include(CMakePackageConfigHelpers)
list(JOIN COUPLET_MODULES " " COUPLET_PC_REQUIRES)

install(TARGETS couplet)
if(COUPLET_MPI_MODULES)
    install(TARGETS ${COUPLET_MPI_MODULES} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/couplet)
endif()
install(TARGETS couplet_shared EXPORT coupletTargets)
install(TARGETS couplet_static EXPORT coupletStaticTargets)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# CMake: find_package(couplet) gives couplet::couplet (shared) and couplet::couplet_static.
set_target_properties(couplet_shared PROPERTIES EXPORT_NAME couplet)
set(COUPLET_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/couplet)
# Where find_package does not look when the build folder is in PATH: they are of use installed alone.
set(COUPLET_PACKAGING ${CMAKE_BINARY_DIR}/packaging)
file(REMOVE ${CMAKE_BINARY_DIR}/coupletConfig.cmake) # of an older build
configure_package_config_file(cmake/coupletConfig.cmake.in ${COUPLET_PACKAGING}/coupletConfig.cmake
                              INSTALL_DESTINATION ${COUPLET_CMAKE_DIR})
write_basic_package_version_file(${COUPLET_PACKAGING}/coupletConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(EXPORT coupletTargets NAMESPACE couplet:: DESTINATION ${COUPLET_CMAKE_DIR})
install(EXPORT coupletStaticTargets NAMESPACE couplet:: DESTINATION ${COUPLET_CMAKE_DIR})
install(FILES ${COUPLET_PACKAGING}/coupletConfig.cmake
              ${COUPLET_PACKAGING}/coupletConfigVersion.cmake cmake/Finddnnl.cmake
        DESTINATION ${COUPLET_CMAKE_DIR})

# pkg-config: the prefix is found from where the file lies, so that a staged or moved tree works.
file(RELATIVE_PATH COUPLET_PC_PREFIX "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig"
     "${CMAKE_INSTALL_PREFIX}")
configure_file(cmake/couplet.pc.in couplet.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/couplet.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

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
install(FILES ${CMAKE_BINARY_DIR}/couplet.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${CMAKE_BINARY_DIR}/couplet.bash RENAME couplet
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${CMAKE_BINARY_DIR}/_couplet DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES README.md CHANGELOG.md LICENSE CITATION.cff DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY data/eval/ DESTINATION ${CMAKE_INSTALL_DATADIR}/couplet/eval)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs PATTERN "*.in.md" EXCLUDE)
