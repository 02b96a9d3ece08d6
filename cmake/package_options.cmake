# CPack reads this file for each kind of package (cmake/package.cmake). It has the settings that depend on the kind, and
# the dependencies of Debian's packages.
set(CPACK_CUSTOM_INSTALL_VARIABLES "COUPLET_PC_PREFIX=/usr")
if(NOT CPACK_GENERATOR STREQUAL "DEB")
    set(CPACK_CUSTOM_INSTALL_VARIABLES [[COUPLET_PC_PREFIX=${pcfiledir}/../..]]) # the tarball may lie anywhere
    set(CPACK_PACKAGE_FILE_NAME ${CPACK_ARCHIVE_FILE_NAME})
    return()
endif()

# dpkg-shlibdeps reads a file debian/control in the current folder.
set(folder ${CPACK_COUPLET_BUILD}/packaging)
file(TOUCH ${folder}/debian/control)

# The Debian packages of the shared libraries that a file of the build links to.
function(find_libraries out file)
    execute_process(COMMAND dpkg-shlibdeps -O ${CPACK_COUPLET_BUILD}/${file} WORKING_DIRECTORY ${folder}
                    OUTPUT_VARIABLE said ERROR_VARIABLE error RESULT_VARIABLE code)
    if(code)
        message(FATAL_ERROR "dpkg-shlibdeps ${file}: ${code} ${error}")
    endif()
    string(REGEX REPLACE "^shlibs:Depends=|\n$" "" said "${said}")
    set(${out} "${said}" PARENT_SCOPE)
endfunction()

find_libraries(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS couplet)
find_libraries(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS libcouplet.so)
if(EXISTS ${CPACK_COUPLET_BUILD}/${CPACK_COUPLET_CUDA})
    find_libraries(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS ${CPACK_COUPLET_CUDA})
    string(PREPEND CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "couplet (= ${CPACK_PACKAGE_VERSION}), ")
else() # not built
    list(REMOVE_ITEM CPACK_COMPONENTS_ALL cuda)
endif()
if(CPACK_COUPLET_MPI) # either launcher, which brings its library
    set(launchers ${CPACK_COUPLET_MPI})
    list(TRANSFORM launchers REPLACE "^couplet_mpi_" "")
    list(TRANSFORM launchers REPLACE "^openmpi$" "openmpi-bin")
    list(JOIN launchers " | " CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS)
endif()
if(CPACK_COUPLET_REMOTE) # loaded when it is needed, so that dpkg-shlibdeps does not see it
    list(APPEND CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS libcurl4)
endif()
list(APPEND CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS python3 python3-numpy) # couplet compare
list(JOIN CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS ", " CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS)

# The libraries with which the static library is linked.
set(files ${CPACK_COUPLET_HEADER})
foreach(module IN LISTS CPACK_COUPLET_MODULES)
    execute_process(COMMAND pkg-config --variable=pcfiledir ${module} OUTPUT_VARIABLE place
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    list(APPEND files ${place}/${module}.pc)
endforeach()
execute_process(COMMAND dpkg-query -S ${files} OUTPUT_VARIABLE owners COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n:]+(:[a-z0-9]+)?: [^\n]*" owners "${owners}")
list(TRANSFORM owners REPLACE ":.*" "")
list(SORT owners)
list(REMOVE_DUPLICATES owners)
list(PREPEND owners "${CPACK_DEBIAN_LIBRARY_PACKAGE_NAME} (= ${CPACK_PACKAGE_VERSION})")
list(JOIN owners ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
