# Copies the shared libraries of ${program} into the folder ${libraries_to}, and Debian's files on their licences and
# sources into ${licenses_to}, with a list of them for scanners: ${licenses_to}/couplet.spdx.json, SPDX 2.3. The
# installation (cmake/python.cmake, cmake/install.cmake) runs this file and sets ${version}. If the file ${module}, the
# CUDA backend, exists, the list also has the libraries linked into it.
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

string(TIMESTAMP created UTC) # SOURCE_DATE_EPOCH if it is set
cmake_host_system_information(RESULT system QUERY DISTRIB_INFO)
set(packages "")
set(relations "")
function(describe name id version more)
    string(APPEND packages "    {\"SPDXID\": \"${id}\", \"name\": \"${name}\", \"versionInfo\": \"${version}\",
     \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false${more}}")
    set(packages "${packages}" PARENT_SCOPE)
endfunction()
describe(couplet SPDXRef-couplet "${version}" "")

foreach(library IN LISTS libraries)
    get_filename_component(name ${library} NAME)
    copy(${library} ${libraries_to}/${name})
    # Debian lists files under /lib or /usr/lib; both paths lead to them.
    file(REAL_PATH ${library} file)
    string(REGEX MATCH "[^/]+/[^/]+$" file ${file})
    execute_process(COMMAND dpkg-query -S "*/${file}" OUTPUT_VARIABLE package COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX REPLACE ":.*" "" package "${package}")
    execute_process(COMMAND dpkg-query -W -f "\${Package} \${Version}, of Debian's source \${source:Package} \${source:Version}\\n"
                            ${package} OUTPUT_VARIABLE origin COMMAND_ERROR_IS_FATAL ANY)
    file(APPEND ${licenses_to}/SOURCES "${name}: ${origin}")
    execute_process(COMMAND dpkg-query -W -f "\${Version};\${Architecture}" ${package} OUTPUT_VARIABLE fields
                            COMMAND_ERROR_IS_FATAL ANY)
    list(GET fields 0 debian)
    list(GET fields 1 architecture)
    file(SHA256 ${library} sum)
    string(REPLACE "+" "%2B" url "${package}@${debian}")
    string(REPLACE ":" "%3A" url "${url}?arch=${architecture}&distro=${system_ID}-${system_VERSION_ID}")
    string(MAKE_C_IDENTIFIER ${name} id)
    string(REPLACE "_" "-" id SPDXRef-${id})
    string(APPEND packages ",\n")
    describe(${name} ${id} "${debian}" ",
     \"checksums\": [{\"algorithm\": \"SHA256\", \"checksumValue\": \"${sum}\"}],
     \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\",
                       \"referenceLocator\": \"pkg:deb/${system_ID}/${url}\"}]")
    string(APPEND relations ",
    {\"spdxElementId\": \"SPDXRef-couplet\", \"relationshipType\": \"CONTAINS\", \"relatedSpdxElement\": \"${id}\"}")
    set(text ${licenses_to}/${package})
    copy(/usr/share/doc/${package}/copyright ${text})
    file(STRINGS ${text} lines REGEX "/usr/share/common-licenses/")
    string(REGEX MATCHALL "/usr/share/common-licenses/[A-Z][A-Za-z]+(-[0-9](\\.[0-9])?)?" commons "${lines}")
    foreach(common IN LISTS commons)
        get_filename_component(name ${common} NAME)
        copy(${common} ${licenses_to}/${name})
    endforeach()
endforeach()

if(EXISTS "${module}")
    file(APPEND ${licenses_to}/SOURCES "couplet-cuda.so: NVIDIA's CUDA runtime (libcudart_static.a) is linked into it, \
under https://docs.nvidia.com/cuda/eula/, Attachment A\n")
endif()

file(WRITE ${licenses_to}/couplet.spdx.json "{
  \"spdxVersion\": \"SPDX-2.3\", \"dataLicense\": \"CC0-1.0\", \"SPDXID\": \"SPDXRef-DOCUMENT\",
  \"name\": \"couplet-${version}\", \"documentNamespace\": \"https://spdx.org/spdxdocs/couplet-${version}-${created}\",
  \"creationInfo\": {\"created\": \"${created}\", \"creators\": [\"Tool: cmake/bundle.cmake\"]},
  \"packages\": [
${packages}
  ],
  \"relationships\": [
    {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", \"relatedSpdxElement\": \"SPDXRef-couplet\"}${relations}
  ]
}
")
