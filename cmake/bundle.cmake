# Copies the shared libraries of ${program} into the folder ${libraries_to}, and what Debian says of their licences and
# sources into ${licenses_to}. Run by the installation (cmake/python.cmake, cmake/install.cmake).
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${program} RESOLVED_DEPENDENCIES_VAR libraries
     PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread)\\.so")
file(MAKE_DIRECTORY ${libraries_to})
file(REMOVE_RECURSE ${licenses_to})
file(MAKE_DIRECTORY ${licenses_to})

function(copy from to)
    file(REAL_PATH ${from} file)
    file(COPY_FILE ${file} ${to})
    file(CHMOD ${to} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endfunction()

foreach(library IN LISTS libraries)
    get_filename_component(name ${library} NAME)
    copy(${library} ${libraries_to}/${name})
    # Debian lists files under /lib or /usr/lib; either reaches them.
    file(REAL_PATH ${library} file)
    string(REGEX MATCH "[^/]+/[^/]+$" file ${file})
    execute_process(COMMAND dpkg-query -S "*/${file}" OUTPUT_VARIABLE package COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX REPLACE ":.*" "" package "${package}")
    execute_process(COMMAND dpkg-query -W -f "\${Package} \${Version}, of Debian's source \${source:Package} \${source:Version}\\n"
                            ${package} OUTPUT_VARIABLE origin COMMAND_ERROR_IS_FATAL ANY)
    file(APPEND ${licenses_to}/SOURCES "${name}: ${origin}")
    set(text ${licenses_to}/${package})
    copy(/usr/share/doc/${package}/copyright ${text})
    file(STRINGS ${text} lines REGEX "/usr/share/common-licenses/")
    string(REGEX MATCHALL "/usr/share/common-licenses/[A-Z][A-Za-z]+(-[0-9](\\.[0-9])?)?" commons "${lines}")
    foreach(common IN LISTS commons)
        get_filename_component(name ${common} NAME)
        copy(${common} ${licenses_to}/${name})
    endforeach()
endforeach()
